//! The API server, by a kubeconfig or by the service account of the pod. Both are read anew for each request and each watch: tokens and
//! certificates are renewed.

mod lease;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;

pub(crate) use lease::{LeasePlace, read_lease};
pub(crate) use watch::{WatchEvent, Watched, watch};

const WITHIN: Duration = Duration::from_secs(10);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A connection on which nothing comes for so long is given up. The API server sends a bookmark to each watch every 60 to 75 s
/// (k8s.io/apiserver, storage/cacher: `bookmarkFrequency`).
const SILENT_FOR: Duration = Duration::from_secs(90);
/// What audit logs and metrics of the API server call both programs.
const NAME: &str = concat!("egret-konnectivity/", env!("CARGO_PKG_VERSION"));

/// How the API server is asked.
#[derive(Clone, Debug)]
pub(crate) struct ApiServer {
    /// Without, it is the one whose pod this is.
    kubeconfig: Option<PathBuf>,
}

impl ApiServer {
    pub(crate) fn new(kubeconfig: Option<PathBuf>) -> Self {
        let kubeconfig = kubeconfig.filter(|path| !path.as_os_str().is_empty());
        Self { kubeconfig }
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let mut config = match &self.kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path).with_context(|| path.display().to_string())?;
                Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                    .await
                    .with_context(|| path.display().to_string())?
            }
            None => Config::incluster().context("service account of the pod")?,
        };
        config.connect_timeout = Some(CONNECT_WITHIN);
        config.read_timeout = Some(SILENT_FOR);
        // Watches are begun again by themselves, and tell of it.
        config.default_retry = false;
        config.headers.push((USER_AGENT, HeaderValue::from_static(NAME)));
        Ok(Client::try_from(config)?)
    }

    /// The object that comes of a request. An answer that is an error has its status, and the object that says so.
    pub(crate) async fn request(
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
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let mut request = Request::builder().method(method).uri(path);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        match self.client().await?.request::<Value>(request.body(body)?).await {
            Ok(answer) => Ok((StatusCode::OK, answer)),
            Err(kube::Error::Api(status)) => {
                let code = StatusCode::from_u16(status.code)?;
                Ok((code, serde_json::to_value(&*status)?))
            }
            Err(error) => Err(error.into()),
        }
    }
}
