//! The admin listener of both daemons: `/healthz`, `/readyz`, `/metrics`, and what a daemon adds.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::task;

/// What a daemon answers to its operators.
pub trait Admin: Send + Sync + 'static {
    /// `Ok`, or the reasons why the daemon does not do its work now.
    ///
    /// # Errors
    /// One line a reason.
    fn health(&self) -> Result<(), String>;

    /// `Ok` with a sentence, or the reasons why the daemon is not ready yet.
    ///
    /// # Errors
    /// One line a reason.
    fn readiness(&self) -> Result<String, String>;

    /// Prometheus' text.
    fn metrics(&self) -> String;

    /// Any other page, as plain text; nothing where there is none.
    fn page(&self, path: &str) -> Option<String>;
}

/// Binds the listener: done before anything else starts, so that a wrong address is an error at once.
///
/// # Errors
/// With the address.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| std::io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

/// Answers until the runtime ends.
pub async fn serve(listener: TcpListener, admin: Arc<dyn Admin>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(task::spawn("admin", answer(stream, Arc::clone(&admin)))),
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, admin: Arc<dyn Admin>) {
    let service = service_fn(move |request| {
        let response = respond(&request, admin.as_ref());
        async move { Ok::<_, Infallible>(response) }
    });
    if let Err(error) = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        tracing::debug!(%error, "an admin connection ended early");
    }
}

fn respond(request: &Request<Incoming>, admin: &dyn Admin) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET is answered\n".to_owned(),
        );
    }
    match request.uri().path() {
        // CoreDNS' words, octet for octet.
        "/health" => match admin.health() {
            Ok(()) => text(StatusCode::OK, "OK".to_owned()),
            Err(reasons) => state(Err(reasons)),
        },
        "/healthz" => state(admin.health().map(|()| "ok".to_owned())),
        "/readyz" => state(admin.readiness()),
        "/metrics" => text(StatusCode::OK, admin.metrics()),
        other => match admin.page(other) {
            Some(page) => text(StatusCode::OK, page),
            None => text(
                StatusCode::NOT_FOUND,
                "there are /healthz, /readyz and /metrics\n".to_owned(),
            ),
        },
    }
}

fn state(state: Result<String, String>) -> Response<Full<Bytes>> {
    match state {
        Ok(sentence) => text(StatusCode::OK, sentence + "\n"),
        Err(reasons) => text(StatusCode::SERVICE_UNAVAILABLE, reasons + "\n"),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    response
}
