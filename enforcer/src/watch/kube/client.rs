//! The client, and what its answers say of the watches.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use egret_shared::rt::clock;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::{Layer, Service};

use super::contact::{Contact, Sent};

/// What audit logs and metrics of the API server call this program.
const NAME: &str = concat!("egret-enforcer/", env!("CARGO_PKG_VERSION"));
/// An API server that takes longer to accept a connection is tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection on which nothing comes for so long is given up: the other end may be gone without a word. The API server
/// sends a bookmark to each watch every 60 to 75 s (k8s.io/apiserver, storage/cacher: `bookmarkFrequency`).
const READ_TIMEOUT: Duration = Duration::from_secs(90);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The kubeconfig.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The service account.
    #[error(
        "no API server is known: name a kubeconfig by --kubeconfig or $KUBECONFIG, or run in a pod with a service account: {0}"
    )]
    InCluster(#[from] kube::config::InClusterError),
    /// The client.
    #[error("no client can be made of the configuration: {0}")]
    Client(#[from] kube::Error),
}

/// The API server: by `path`, else by $KUBECONFIG, else by the service account of this pod.
///
/// # Errors
/// When none is known, or what is written of it cannot be used. It is not connected to.
pub(super) async fn config(path: Option<PathBuf>) -> Result<Config, ConfigError> {
    let kubeconfig = match path {
        Some(path) => Some(Kubeconfig::read_from(path)?),
        None => Kubeconfig::from_env()?,
    };
    let mut config = match kubeconfig {
        Some(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?,
        None => Config::incluster()?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Watches are tried again by themselves, and tell of it.
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_static(NAME)));
    Ok(config)
}

pub(super) fn client(config: Config, contact: &Arc<Contact>) -> Result<Client, ConfigError> {
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&ContactLayer(Arc::clone(contact))).build())
}

/// What happened: what the API server says, else the innermost cause. What is around that only says that a request failed.
#[must_use]
pub fn reason(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

struct ContactLayer(Arc<Contact>);

impl<S> Layer<S> for ContactLayer {
    type Service = ContactService<S>;

    fn layer(&self, inner: S) -> ContactService<S> {
        ContactService {
            inner,
            contact: Arc::clone(&self.0),
        }
    }
}

struct ContactService<S> {
    inner: S,
    contact: Arc<Contact>,
}

impl<S, B> Service<Request<Body>> for ContactService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: Send,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let contact = Arc::clone(&self.contact);
        let sent = Sent::read(request.method(), request.uri());
        let asked = clock::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            if let Some(sent) = &sent {
                let pause = contact.note(sent, asked, answer.status(), answer.headers());
                tokio::time::sleep(pause).await;
            }
            Ok(answer)
        })
    }
}
