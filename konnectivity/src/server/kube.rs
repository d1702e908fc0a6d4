//! Single requests to the API server, by a kubeconfig or by the service account of the pod. Both are read at each request: tokens and
//! certificates are renewed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::tls;

const WITHIN: Duration = Duration::from_secs(10);
const MAX_BODY: usize = 4 << 20;
/// Where a pod has its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Asks the API server.
#[derive(Clone, Debug)]
pub(super) struct ApiServer {
    kubeconfig: Option<PathBuf>,
}

/// Where it is, and who asks.
struct Access {
    /// `https://host:port`.
    url: http::Uri,
    name: Option<String>,
    authorities: Vec<u8>,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    token: Option<String>,
}

impl ApiServer {
    pub(super) fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self { kubeconfig }
    }

    /// The object that comes of a request.
    pub(super) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let asked = tokio::time::timeout(WITHIN, self.ask(method, path, body)).await;
        asked
            .context("the API server does not answer")?
            .context("the API server")
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let access = match &self.kubeconfig {
            Some(path) => Access::of_kubeconfig(path).with_context(|| path.display().to_string())?,
            None => Access::of_pod().context("service account of the pod")?,
        };
        let host = access.url.host().context("its URL has no host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, access.url.port_u16().unwrap_or(443))).await?;
        let identity = access
            .certificate
            .as_ref()
            .map(|(chain, key)| (&chain[..], &key[..]));
        let config = tls::client_of_pem(&access.authorities, identity, &[b"h2"])?;
        let name = access.name.clone().unwrap_or_else(|| host.to_owned());
        let stream = TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from(name)?, stream)
            .await?;
        let (client, connection) = h2::client::handshake(stream).await?;
        let answered = answer(client, access.request(method, path, body.is_some())?, body);
        tokio::select! {
            answer = answered => answer,
            ended = connection => { ended?; bail!("it closed the connection") }
        }
    }
}

async fn answer(
    client: h2::client::SendRequest<Bytes>,
    request: Request<()>,
    body: Option<&Value>,
) -> anyhow::Result<(StatusCode, Value)> {
    let mut client = client.ready().await?;
    let (response, mut stream) = client.send_request(request, body.is_none())?;
    if let Some(body) = body {
        stream.send_data(Bytes::from(body.to_string()), true)?;
    }
    let response = response.await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut octets = Vec::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        octets.extend_from_slice(&part);
        ensure!(
            octets.len() <= MAX_BODY,
            "an answer of more than {MAX_BODY} octets"
        );
    }
    let value = serde_json::from_slice(&octets).with_context(|| format!("status {status}, and no JSON"))?;
    Ok((status, value))
}

impl Access {
    fn request(&self, method: Method, path: &str, has_body: bool) -> anyhow::Result<Request<()>> {
        let authority = self.url.authority().context("its URL has no authority")?;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{authority}{path}"))
            .header(http::header::ACCEPT, "application/json")
            .header(
                http::header::USER_AGENT,
                concat!("egret-proxy-server/", env!("CARGO_PKG_VERSION")),
            );
        if has_body {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            let mut value = http::HeaderValue::from_str(&format!("Bearer {}", token.trim()))?;
            value.set_sensitive(true);
            request = request.header(http::header::AUTHORIZATION, value);
        }
        Ok(request.body(())?)
    }

    fn of_pod() -> anyhow::Result<Self> {
        let env = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
        let (host, port) = (env("KUBERNETES_SERVICE_HOST")?, env("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        let file = |name: &str| {
            let path = Path::new(ACCOUNT).join(name);
            std::fs::read(&path).with_context(|| path.display().to_string())
        };
        Ok(Self {
            url: format!("https://{host}:{port}").parse()?,
            name: None,
            authorities: file("ca.crt")?,
            certificate: None,
            token: Some(String::from_utf8(file("token")?)?),
        })
    }

    fn of_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let config: Kubeconfig = serde_saphyr::from_str(&text)?;
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        let named = |name: &str| format!("there is no {name:?}");
        let context = config
            .contexts
            .iter()
            .find(|it| it.name == config.current_context);
        let context = &context.with_context(|| named(&config.current_context))?.context;
        let cluster = config.clusters.iter().find(|it| it.name == context.cluster);
        let cluster = &cluster.with_context(|| named(&context.cluster))?.cluster;
        let user = config.users.iter().find(|it| it.name == context.user);
        let user = &user.with_context(|| named(&context.user))?.user;
        ensure!(
            cluster.server.starts_with("https://"),
            "server: {:?}; https:// is accepted",
            cluster.server
        );
        let authorities = content(
            folder,
            &cluster.certificate_authority,
            &cluster.certificate_authority_data,
        )?;
        let chain = content(folder, &user.client_certificate, &user.client_certificate_data)?;
        let key = content(folder, &user.client_key, &user.client_key_data)?;
        let certificate = match (chain, key) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            _ => bail!("client-certificate and client-key are given together"),
        };
        let token_file = content(folder, &user.token_file, &None)?
            .map(String::from_utf8)
            .transpose()?;
        Ok(Self {
            url: cluster.server.parse()?,
            name: cluster.tls_server_name.clone(),
            authorities: authorities.context("certificate-authority is missing")?,
            certificate,
            token: token_file.or_else(|| user.token.clone()),
        })
    }
}

/// Data, or the content of a file, which is relative to the kubeconfig.
fn content(folder: &Path, file: &Option<PathBuf>, data: &Option<String>) -> anyhow::Result<Option<Vec<u8>>> {
    match (data, file) {
        (Some(data), _) => Ok(Some(STANDARD.decode(data.trim())?)),
        (None, Some(file)) => {
            let path = folder.join(file);
            let content = std::fs::read(&path).with_context(|| path.display().to_string())?;
            Ok(Some(content))
        }
        (None, None) => Ok(None),
    }
}

/// What is used of a kubeconfig; it has more fields than these.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: String,
    contexts: Vec<NamedContext>,
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: KubeContext,
}

#[derive(Deserialize)]
struct KubeContext {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: KubeCluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct KubeCluster {
    server: String,
    tls_server_name: Option<String>,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: KubeUser,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct KubeUser {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
}
