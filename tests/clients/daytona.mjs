// The Daytona SDK for TypeScript, as it is: every public method of it is called against Holdfast. What it did is printed
// as one JSON object, with the methods that the SDK declares and nobody called.
import { Daytona, Image } from '@daytonaio/sdk'
import { readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { Readable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import path from 'node:path'

const [apiUrl, apiKey, folder, image, languageServer] = process.argv.slice(2)
const found = {}
const uncalled = declared()
found.declared = uncalled.size > 150
const refusals = []

const daytona = watched('Daytona', new Daytona({ apiKey, apiUrl, target: 'local' }))
for (const [name, service] of Object.entries({ Volume: 'volume', Snapshot: 'snapshot', Secret: 'secret', WarmPool: 'warmPool' })) {
  watched(`${name}Service`, daytona[service])
}
const mark = `ts-${Date.now()}`
const volume = await daytona.volume.create(mark)
found.volume = (await daytona.volume.get(mark, true)).state
found.volumes = (await daytona.volume.list()).some((each) => each.id === volume.id)
const sandbox = watched(
  'Sandbox',
  await daytona.create(
    {
      name: mark,
      user: 'daytona',
      language: 'python',
      labels: { suite: mark },
      envVars: { COLOR: 'blue' },
      public: false,
      autoStopInterval: 30,
      autoArchiveInterval: 60,
      autoDeleteInterval: -1,
      ttlMinutes: 600,
      volumes: [{ volumeId: volume.id, mountPath: '/home/daytona/data', subpath: 'tour' }],
    },
    { timeout: 60 },
  ),
)
const { process: run, fs, git, codeInterpreter, computerUse } = sandbox
watched('Process', run), watched('FileSystem', fs), watched('Git', git), watched('CodeInterpreter', codeInterpreter)

const listed = []
for await (const each of daytona.list({ labels: { suite: mark }, states: ['started'], limit: 1, sort: 'memoryGib', order: 'asc' }))
  listed.push(each.id)
found.listed = listed.length === 1 && listed[0] === sandbox.id
found.exec = (await run.executeCommand('echo $COLOR; pwd', undefined, {}, 30)).result
found.code = (await run.codeRun('import sys; print(6 * int(sys.argv[1]))', { argv: ['7'] }, 30)).result
found.folders = [await sandbox.getWorkDir(), await sandbox.getUserHomeDir(), await sandbox.getUserRootDir()]

// --- files ---
await fs.uploadFile(Buffer.from('one'), 'files/one.txt')
await fs.uploadFiles([{ source: Buffer.from('two'), destination: 'files/two.txt' }])
const here = path.join(folder, 'here.txt')
writeFileSync(here, 'from a file')
await fs.uploadFile(here, 'files/three.txt', 60)
let sent = 0
await fs.uploadFileStream(Readable.from([Buffer.alloc(300_000, 'x')]), 'files/stream.bin', {
  onProgress: (progress) => (sent = progress.bytesSent),
})
found.sent = sent
found.downloaded = (await fs.downloadFile('files/one.txt')).toString()
await fs.downloadFile('files/three.txt', `${here}.copy`, 60)
found.file = readFileSync(`${here}.copy`, 'utf8')
let streamed = 0
for await (const piece of await fs.downloadFileStream('files/stream.bin')) streamed += piece.length
found.streamed = streamed
found.bulk = (await fs.downloadFiles([{ source: 'files/two.txt' }, { source: 'files/none' }])).map((each) => [
  each.result?.toString() ?? null,
  each.errorDetails?.code ?? null,
])
found.details = (await fs.getFileDetails('files/one.txt')).size
await fs.createFolder('files/sub', '755')
await fs.moveFiles('files/one.txt', 'files/sub/moved.txt')
await fs.setFilePermissions('files/sub/moved.txt', { mode: '600', owner: 'daytona', group: 'daytona' })
found.tree = (await fs.listFiles('files', { depth: 2 })).length
found.replaced = (await fs.replaceInFiles(['files/sub/moved.txt'], 'one', 'uno'))[0].success
found.searched = (await fs.searchFiles('files', '*.txt')).files.length
found.matches = (await fs.findFiles('files', 'uno')).length
await fs.deleteFile('files', true)

// --- sessions ---
await run.createSession('s')
const done = await run.executeSessionCommand('s', { command: 'cd /tmp; pwd; echo oops >&2' }, 30)
found.session = [done.stdout, done.stderr, done.exitCode]
const slow = await run.executeSessionCommand('s', {
  command: 'read line; for n in 1 2; do echo $line$n; sleep 0.1; done',
  runAsync: true,
})
await run.sendSessionCommandInput('s', slow.cmdId, 'x')
let followed = ''
await run.getSessionCommandLogs('s', slow.cmdId, (text) => (followed += text), () => {})
found.followed = followed
found.logs = (await run.getSessionCommandLogs('s', slow.cmdId)).stdout
found.command = (await run.getSessionCommand('s', slow.cmdId)).exitCode
found.commands = (await run.getSession('s')).commands.length
found.sessions = (await run.listSessions()).length
await run.deleteSession('s')
await run.getEntrypointSession()
await run.getEntrypointLogs()
await run.getEntrypointLogs(() => {}, () => {})

// --- terminals ---
let shown = ''
const onData = (data) => (shown += new TextDecoder().decode(data))
const terminal = watched('PtyHandle', await run.createPty({ id: 'p', cols: 90, rows: 20, envs: { Q: 'word' }, cwd: '/tmp', onData }))
await terminal.waitForConnection()
found.connected = terminal.isConnected()
found.resized = [(await terminal.resize(91, 21)).cols, (await run.resizePtySession('p', 92, 22)).rows]
found.terminals = (await run.listPtySessions()).map((each) => each.id)
found.size = (await run.getPtySessionInfo('p')).cols
const again = await run.connectPty('p', { onData: () => {} })
await terminal.sendInput('pwd; echo =$Q=; stty size; exit 4\n')
found.terminal = [(await terminal.wait()).exitCode, ...['=word=', '22 92', '/tmp'].map((text) => shown.includes(text))]
await terminal.disconnect(), await again.disconnect()
const killed = await run.createPty({ id: 'q', onData: () => {} })
await killed.kill()
found.killed = (await killed.wait()).exitCode
await run.createPty({ id: 'r', onData: () => {} })
await run.killPtySession('r')

// --- interpreters ---
const context = await codeInterpreter.createContext('/tmp')
found.contexts = (await codeInterpreter.listContexts()).length
const heard = []
await codeInterpreter.runCode('x = 1', { context })
const ran = await codeInterpreter.runCode('import os; print(x, os.environ["A"]); 1/0', {
  context, envs: { A: 'b' }, timeout: 30,
  onStdout: (message) => heard.push(message.output), onError: (error) => heard.push(error.name),
})
found.interpreter = [ran.stdout, ran.error.name, heard.at(-1)]
await codeInterpreter.deleteContext(context)

// --- git ---
await git.init('bare', true, 'main')
await git.init('r', false, 'main')
await git.configureUser('Ann', 'ann@example.com', 'local', 'r')
await git.setConfig('a.b', 'c', 'local', 'r')
found.config = await git.getConfig('a.b', 'local', 'r')
await fs.uploadFile(Buffer.from('1'), 'r/file')
await git.add('r', ['file'])
const first = await git.commit('r', 'first', 'Ann', 'ann@example.com', false)
await git.createBranch('r', 'topic')
await git.checkoutBranch('r', 'main')
await git.deleteBranch('r', 'topic')
await git.remoteAdd('r', 'origin', '/home/daytona/bare', false, true)
found.remote = [await git.remoteGet('r', 'origin'), (await git.remotes('r')).remotes.length]
await git.push('r', 'u', 'p', 'main', 'origin', true)
await git.pull('r', 'u', 'p', 'main', 'origin')
await git.clone('file:///home/daytona/bare', 'copy', 'main', first.sha, 'u', 'p', true, 1)
await fs.uploadFile(Buffer.from('2'), 'r/file')
await git.restore('r', ['file'], true, true, 'HEAD')
await git.reset('r', 'hard', 'HEAD')
found.git = [(await git.branches('r')).branches, (await git.status('r')).currentBranch]
await git.dangerouslyAuthenticate('u', 'p', 'example.com', 'https')

// --- a language server ---
await fs.uploadFile(languageServer, '.local/bin/pylsp')
await fs.setFilePermissions('.local/bin/pylsp', { mode: '755' })
await fs.uploadFile(Buffer.from('def one():\n    pass\n'), 'project/code.py')
const language = watched('LspServer', await sandbox.createLspServer('python', 'project'))
await language.start()
await language.didOpen('project/code.py')
found.symbols = (await language.documentSymbols('project/code.py')).map((each) => each.name)
found.more = [await language.workspaceSymbols('x'), await language.sandboxSymbols('x')]
found.completed = (await language.completions('project/code.py', { line: 0, character: 0 })).items[0].label
await language.didClose('project/code.py')
await language.stop()

// --- secrets ---
const secret = await daytona.secret.create({ name: `${mark}-secret`, value: 'x'.repeat(20), hosts: ['api.example.com'] })
await daytona.secret.update(secret.id, { description: 'of a tour' })
await sandbox.updateSecrets({ TOKEN: secret.name })
found.secret = [
  (await run.executeCommand('echo $TOKEN')).result === `${secret.placeholder}\n`,
  (await daytona.secret.get(secret.id)).description,
  (await daytona.secret.list({ name: secret.name })).total,
]
await sandbox.updateSecrets({})
await daytona.secret.delete(secret.id)

// --- what is not there ---
const nowhere = { ssh: [['createSshAccess', 10], ['revokeSshAccess', 'x'], ['validateSshAccess', 'x']] }
for (const calls of Object.values(nowhere)) for (const [name, value] of calls) await refused(sandbox, name, value)
await refused(daytona.warmPool, 'list'), await refused(daytona.warmPool, 'create', 'daytona-small', 1)
await refused(daytona.warmPool, 'update', 'x', 1), await refused(daytona.warmPool, 'delete', 'x')

// --- the desktop: works where the machine has the programs for one, otherwise it is refused by name ---
const desktop = {
  ComputerUse: computerUse, Mouse: computerUse.mouse, Keyboard: computerUse.keyboard, Screenshot: computerUse.screenshot,
  Display: computerUse.display, RecordingService: computerUse.recording, Accessibility: computerUse.accessibility,
}
for (const [kind, part] of Object.entries(desktop)) watched(kind, part)
const started = await computerUse.start().then(
  () => true,
  (error) => error.statusCode !== 501 && refusals.push(`start: ${error.message}`) && false,
)
const recording = started ? await computerUse.recording.start('x') : { id: 'x' }
const arguments_ = {
  getProcessStatus: ['xvfb'], restartProcess: ['fluxbox'], getProcessLogs: ['xvfb'], getProcessErrors: ['xvfb'], move: [1, 2],
  click: [1, 2], drag: [1, 2, 3, 4], scroll: [1, 2, 'down'], type: ['x'], press: ['x'], hotkey: ['x'], down: ['x'], up: ['x'],
  takeCompressed: [{}], takeRegion: [{ x: 5, y: 6, width: 7, height: 8 }], // the SDK confuses the four
  takeCompressedRegion: [{ x: 0, y: 0, width: 1, height: 1 }, {}], get: [recording.id], download: [recording.id, `${here}.recording`],
  focusNode: ['x'], invokeNode: ['x'], setNodeValue: ['x', 'y'],
}
const without = [501, 503, 404]
for (const [kind, part] of Object.entries(desktop)) {
  for (const name of [...uncalled].filter((each) => each.startsWith(`${kind}.`)).map((each) => each.split('.')[1])) {
    if (['stop', 'delete'].includes(name)) continue
    const given = kind === 'Mouse' && ['down', 'up'].includes(name) ? [1, 2] : (arguments_[name] ?? [])
    const status = await part[name](...given).then(() => 200, (error) => error.statusCode ?? error.message)
    const expected = kind === 'Accessibility' ? without : started ? [200] : [200, ...without]
    if (!expected.includes(status)) refusals.push(`${kind}.${name}: ${status}`)
  }
}
for (const [part, name] of [[computerUse.recording, 'stop'], [computerUse.recording, 'delete']])
  await part[name](recording.id).catch((error) => started && refusals.push(`${name}: ${error.message}`))
await computerUse.stop()
found.refusals = refusals

// --- settings ---
found.labels = await sandbox.setLabels({ other: 'label' })
await sandbox.setAutostopInterval(0), await sandbox.setAutoPauseInterval(0), await sandbox.setAutostopInterval(5)
await sandbox.setAutoArchiveInterval(70), await sandbox.setAutoDeleteInterval(80), await sandbox.setTtl(700)
await sandbox.updateNetworkSettings({ networkBlockAll: true })
await sandbox.updateEnv({ A: '1' }, { unset: ['COLOR'] })
await sandbox.refreshActivity()
await sandbox.refreshData()
found.settings = [sandbox.autoStopInterval, sandbox.autoArchiveInterval, sandbox.autoDeleteInterval, sandbox.networkBlockAll]
found.metrics = [(await sandbox.getMetricsLatest()).cpuCount, Array.isArray(await sandbox.getMetrics())]
found.preview = Boolean((await sandbox.getPreviewLink(3000)).token)
const signed = await sandbox.getSignedPreviewUrl(3000, 60)
await sandbox.expireSignedPreviewUrl(3000, signed.token)
found.urls = [await sandbox.downloadUrl('/tmp/x', 60), await sandbox.uploadUrl('/tmp/x', 60)].every((url) => url.includes('signature='))
await sandbox.rotateSigningKey()

// --- snapshots and lifecycle ---
await sandbox.createSnapshot(mark, 60)
found.snapshot = (await daytona.snapshot.get(mark)).state
found.snapshots = (await daytona.snapshot.list({ limit: 1 })).total >= 3
found.activated = await daytona.snapshot.activate(mark).catch((error) => error.statusCode)
await daytona.snapshot.delete(mark)
const lines = []
const built = await daytona.snapshot.create(
  { name: `${mark}-built`, image: Image.base(image).runCommands(`echo ${mark} > /built`) },
  { onLogs: (line) => lines.push(line) },
)
found.built = [built.state, lines.some((line) => line.includes('RUN'))]
await daytona.snapshot.delete(built)
lines.length = 0
const recipe = Image.base(image).runCommands(`echo building ${mark}`, `echo ${mark} > /own`)
const own = await daytona.create({ image: recipe, resources: { cpu: 1 } }, { onSnapshotCreateLogs: (line) => lines.push(line) })
found.own = [own.state, lines.join('\n').includes(`building ${mark}`), (await own.process.executeCommand('cat /own')).result.trim() === mark]
await own.delete()
const forked = await sandbox.fork({ name: `${mark}-fork` }, 60)
const second = await daytona.fork(sandbox, { name: `${mark}-second` }, 60)
await sandbox.resize({ cpu: 2 }, 60)
await sandbox.waitForResizeComplete(60)
await sandbox.pause(60)
await sandbox.start(60)
await daytona.stop(sandbox)
await sandbox.waitUntilStopped(60)
await sandbox.archive()
found.archived = sandbox.state
await daytona.start(sandbox, 60)
await sandbox.waitUntilStarted(60)
found.started = [sandbox.state, sandbox.cpu]
found.recovered = await sandbox.recover(60).catch((error) => error.statusCode)
await sandbox.stop(60, true)
await daytona.delete(sandbox, 60, true)
await forked.delete(60, true), await second.delete(60, true)
try {
  await daytona.get(sandbox.id)
} catch (error) {
  found.gone = [error.constructor.name, error.statusCode]
}
await daytona.volume.delete(volume)
found.uncalled = [...uncalled].sort()
console.log(JSON.stringify(found))
process.exit(0)

/** The public methods of the SDK's classes, as its declarations name them. */
function declared() {
  const place = path.dirname(fileURLToPath(import.meta.resolve('@daytonaio/sdk')))
  const names = new Set()
  for (const file of readdirSync(place).filter((each) => each.endsWith('.d.ts'))) {
    if (['Image.d.ts', 'ObjectStorage.d.ts', 'index.d.ts'].includes(file)) continue // they call no server by themselves
    for (const [, kind, body] of readFileSync(path.join(place, file), 'utf8').matchAll(/export declare class (\w+)[^{]*\{\n(.*?)\n\}/gs))
      for (const [, name] of body.matchAll(/^ {4}([a-z]\w*)\(/gm)) if (name !== 'constructor') names.add(`${kind}.${name}`)
  }
  return names
}

/** Note which methods of an object are called. */
function watched(kind, object) {
  const prototype = Object.getPrototypeOf(object)
  for (const name of Object.getOwnPropertyNames(prototype)) {
    const method = Object.getOwnPropertyDescriptor(prototype, name).value
    if (typeof method !== 'function' || name === 'constructor' || method.isWatched) continue
    prototype[name] = function (...values) {
      uncalled.delete(`${kind}.${name}`)
      return method.apply(this, values)
    }
    prototype[name].isWatched = true
  }
  return object
}

/** Note what is not answered with 501. */
async function refused(object, name, ...values) {
  try {
    await object[name](...values)
    refusals.push(`${name}: was answered`)
  } catch (error) {
    if ((error.statusCode ?? error.response?.status) !== 501) refusals.push(`${name}: ${error.statusCode} ${error.message}`)
  }
}
