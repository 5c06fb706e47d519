// The Daytona SDK for TypeScript, as it is: what it does against Holdfast, as one JSON object on standard output.
import { Daytona } from '@daytonaio/sdk'

const [apiUrl, apiKey] = process.argv.slice(2)
const daytona = new Daytona({ apiKey, apiUrl, target: 'local' })
const sandbox = await daytona.create({ labels: { suite: 'typescript' }, envVars: { COLOR: 'blue' } })
const { process: run, fs, git } = sandbox
const found = {}

const listed = []
for await (const each of daytona.list({ labels: { suite: 'typescript' } })) listed.push(each.id)
found.listed = listed.length === 1 && listed[0] === sandbox.id
found.exec = (await run.executeCommand('echo $COLOR; pwd')).result
found.code = (await run.codeRun('print(6 * 7)')).result
found.folders = [await sandbox.getWorkDir(), await sandbox.getUserHomeDir()]

await fs.uploadFile(Buffer.from('one'), 'files/one.txt')
await fs.uploadFiles([{ source: Buffer.from('two'), destination: 'files/two.txt' }])
found.downloaded = (await fs.downloadFile('files/one.txt')).toString()
found.bulk = (await fs.downloadFiles([{ source: 'files/two.txt' }, { source: 'files/none' }])).map((each) => [
  each.result?.toString() ?? null,
  Boolean(each.error),
])
found.details = (await fs.getFileDetails('files/one.txt')).size
await fs.createFolder('files/sub', '755')
await fs.moveFiles('files/one.txt', 'files/sub/moved.txt')
await fs.setFilePermissions('files/sub/moved.txt', { mode: '600' })
found.replaced = (await fs.replaceInFiles(['files/sub/moved.txt'], 'one', 'uno'))[0].success
found.searched = (await fs.searchFiles('files', '*.txt')).files.length
found.matches = (await fs.findFiles('files', 'uno')).length
await fs.deleteFile('files', true)

await run.createSession('s')
const done = await run.executeSessionCommand('s', { command: 'cd /tmp; pwd; echo oops >&2' })
found.session = [done.stdout, done.stderr, done.exitCode]
const slow = await run.executeSessionCommand('s', {
  command: 'read line; for n in 1 2; do echo $line$n; sleep 0.1; done',
  runAsync: true,
})
await run.sendSessionCommandInput('s', slow.cmdId, 'x')
let followed = ''
await run.getSessionCommandLogs('s', slow.cmdId, (text) => (followed += text), () => {})
found.followed = followed
found.sessions = (await run.listSessions()).length
await run.deleteSession('s')

let shown = ''
const terminal = await run.createPty({
  id: 'p', cols: 90, rows: 20, envs: { Q: 'word' }, onData: (data) => (shown += new TextDecoder().decode(data)),
})
await terminal.waitForConnection()
await terminal.sendInput('echo =$Q=; stty size; exit 4\n')
found.terminal = [(await terminal.wait()).exitCode, shown.includes('=word='), shown.includes('20 90')]
await terminal.disconnect()

const context = await sandbox.codeInterpreter.createContext()
await sandbox.codeInterpreter.runCode('x = 1', { context })
const ran = await sandbox.codeInterpreter.runCode('print(x); 1/0', { context })
found.interpreter = [ran.stdout, ran.error.name]

await run.executeCommand('git init -q -b main r && echo 1 > r/file')
await git.add('r', ['file'])
await git.commit('r', 'first', 'Ann', 'ann@example.com')
await git.createBranch('r', 'topic')
found.git = [(await git.branches('r')).branches, (await git.status('r')).currentBranch]

found.labels = await sandbox.setLabels({ other: 'label' })
await sandbox.setAutostopInterval(5)
await sandbox.updateNetworkSettings({ networkBlockAll: true })
await sandbox.refreshData()
found.settings = [sandbox.autoStopInterval, sandbox.networkBlockAll]
found.preview = Boolean((await sandbox.getPreviewLink(3000)).token)
const volume = await daytona.volume.get('typescript', true)
found.volume = volume.state
await daytona.volume.delete(volume)
found.snapshots = (await daytona.snapshot.list()).total >= 3
await sandbox.stop()
await sandbox.archive()
found.archived = sandbox.state
await sandbox.start()
found.started = sandbox.state
await daytona.delete(sandbox)
try {
  await daytona.get(sandbox.id)
} catch (error) {
  found.gone = [error.constructor.name, error.statusCode]
}
console.log(JSON.stringify(found))
process.exit(0)
