// An identity provider for tests, on loopback. Whoever logs in is who they say: the name in the query `as`.
// Prints its issuer once it listens, and then reads the redirect URI of its client. Arguments: the client's id and secret.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import Provider from "oidc-provider";

const [clientId, clientSecret] = process.argv.slice(2);
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  console.log(issuer);
  createInterface({ input: process.stdin }).once("line", (redirectUri) => serve(issuer, redirectUri));
});

function serve(issuer, redirectUri) {
  let account = "nobody";
  const provider = new Provider(issuer, {
    clients: [{
      client_id: clientId,
      client_secret: clientSecret,
      redirect_uris: [redirectUri],
      response_types: ["code"],
      grant_types: ["authorization_code"],
      token_endpoint_auth_method: "client_secret_post",
    }],
    pkce: { required: () => true },
    claims: { email: ["email", "email_verified"], profile: ["name"] },
    conformIdTokenClaims: false,
    features: { devInteractions: { enabled: false } },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: !id.startsWith("unverified") }),
    }),
  });
  provider.on("server_error", (_, error) => console.error(error));
  server.on("request", async (request, response) => {
    const url = new URL(request.url, issuer);
    if (url.pathname === "/as") {  // the next person at the keyboard
      account = url.searchParams.get("name");
      response.end();
      return;
    }
    if (!url.pathname.startsWith("/interaction/")) {
      provider.callback()(request, response);
      return;
    }
    const { prompt, params, session } = await provider.interactionDetails(request, response);
    let result;
    if (prompt.name === "login") {
      result = { login: { accountId: account } };
    } else {
      const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
      grant.addOIDCScope("openid email profile");
      result = { consent: { grantId: await grant.save() } };
    }
    await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
  });
  console.log("ready");
}
