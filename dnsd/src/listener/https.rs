//! DNS over HTTPS (RFC 8484), over HTTP/2 or HTTP/1.1: a query is the body of a POST, or a parameter of a GET.
//!
//! Status codes are those of CoreDNS: 404 for another path, 400 for an invalid query, 500 if there is no reply.

use std::convert::Infallible;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use egret_shared::rt::task;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use metrics::counter;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use super::connection::{ListenerContext, MAX_PIPELINED, Peer, UNWRITTEN};
use crate::config::model::Timeouts;
use crate::dns::message::{HEADER, Message, kind, rcode};
use crate::limits::permits::Permit;
use crate::pipeline::{Disposition, ReceivedAt};

/// The path (plugin/pkg/doh of CoreDNS).
const PATH: &str = "/dns-query";
/// The media type of a message (RFC 8484 §6).
const MESSAGE: HeaderValue = HeaderValue::from_static("application/dns-message");
/// The largest header of a request, in octets. A longer query can be sent in a body.
const MAX_HEADERS: u32 = 16 << 10;
/// The longest max-age of a reply with records, and the max-age without records (plugin/pkg/dnsutil of CoreDNS), in
/// seconds.
const LONGEST: u32 = 3_600;
const WITHOUT_RECORDS: u32 = 5;

/// Serves a connection until the client, its timeout or the listener ends it.
pub(super) async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    listener_context: ListenerContext,
    timeouts: Timeouts,
) {
    let cut = peer.cut.clone();
    let context = Arc::new(ConnectionContext {
        peer,
        listener_context,
        timeouts,
        activity: Activity::default(),
    });
    let answering = Arc::clone(&context);
    let answer = service_fn(move |request| {
        let context = Arc::clone(&answering);
        async move { Ok::<_, Infallible>(context.answer(request).await) }
    });
    let builder = builder(timeouts);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), answer));
    tokio::select! {
        ended = connection.as_mut() => return note(ended),
        () = cut.cancelled() => {
            context.listener_context.service.metrics.tcp_cut.increment(1);
            return;
        }
        () = context.activity.idle(timeouts.idle) => {}
        () = context.listener_context.close.cancelled() => {}
    }
    // The client sends no more requests then; those already sent are answered.
    connection.as_mut().graceful_shutdown();
    let all_answered = async {
        context.activity.nothing().await;
        sleep(timeouts.write).await;
    };
    tokio::select! {
        ended = connection => note(ended),
        () = cut.cancelled() => {}
        () = all_answered => {}
    }
}

fn note(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(error, "a connection over HTTPS ended");
    }
}

fn builder(timeouts: Timeouts) -> Builder<SpawnExecutor> {
    let mut builder = Builder::new(SpawnExecutor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.idle.max(timeouts.read))
        .max_buf_size(MAX_HEADERS as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADERS)
        .max_concurrent_streams(u32::try_from(MAX_PIPELINED).expect("it is a small number"));
    builder
}

/// Requests of a connection are answered concurrently.
#[derive(Clone, Copy, Debug)]
struct SpawnExecutor;

impl<F> hyper::rt::Executor<F> for SpawnExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, answering: F) {
        drop(task::spawn_brief(answering));
    }
}

/// What the requests of a connection share.
struct ConnectionContext {
    peer: Peer,
    listener_context: ListenerContext,
    timeouts: Timeouts,
    activity: Activity,
}

/// A reply that is not sent yet, with its permit.
struct QueuedReply {
    reply: Vec<u8>,
    _permit: Permit<CancellationToken>,
}

impl AsRef<[u8]> for QueuedReply {
    fn as_ref(&self) -> &[u8] {
        &self.reply
    }
}

impl ConnectionContext {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let _busy = self.activity.begin();
        let reply = match self.query(request).await {
            Ok(query) => self.reply(&query).await,
            Err(status) => Err(status),
        };
        let (status, mut response) = match reply {
            Ok(reply) => (StatusCode::OK, self.response(reply)),
            Err(status) => (status, Response::new(Full::default())),
        };
        let server = self.listener_context.port.table().server();
        let status_label = status.as_str().to_owned();
        counter!("coredns_dns_https_responses_total", "server" => server, "status" => status_label)
            .increment(1);
        *response.status_mut() = status;
        response
    }

    /// The query in a request.
    async fn query(&self, request: Request<Incoming>) -> Result<Vec<u8>, StatusCode> {
        if request.uri().path() != PATH {
            return Err(StatusCode::NOT_FOUND);
        }
        let query = match *request.method() {
            Method::GET => query_parameter(request.uri().query().unwrap_or_default()),
            Method::POST => {
                let body = Limited::new(request.into_body(), u16::MAX.into()).collect();
                let read = timeout(self.timeouts.read, body).await;
                read.ok()
                    .and_then(Result::ok)
                    .map(|body| body.to_bytes().to_vec())
            }
            _ => None,
        };
        query
            .filter(|query| query.len() >= HEADER)
            .ok_or(StatusCode::BAD_REQUEST)
    }

    async fn reply(&self, query: &[u8]) -> Result<Vec<u8>, StatusCode> {
        let (service, arrival) = (&self.listener_context.service, self.peer.arrival);
        let table = self.listener_context.port.table();
        let step = service.resolver.answer(query, arrival, &table, ReceivedAt::now());
        let reply = match step {
            Disposition::NoReply => None,
            Disposition::Reply(reply) => Some(reply),
            Disposition::Pending(pending) => {
                // In a task of its own: it completes for other waiters if this client disconnects.
                let waiting = service.under_way.track_future(pending.reply());
                task::spawn_brief(waiting).await.ok().flatten()
            }
        };
        reply.ok_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn response(&self, reply: Vec<u8>) -> Response<Full<Bytes>> {
        let age = max_age(&reply);
        let (unwritten, peer) = (&self.listener_context.service.unwritten, &self.peer);
        let taken = unwritten.take(peer.quota_key, reply.len(), UNWRITTEN, peer.cut.clone());
        let Some(permit) = taken else {
            peer.cut.cancel();
            return Response::new(Full::default());
        };
        let body = Bytes::from_owner(QueuedReply {
            reply,
            _permit: permit,
        });
        let mut response = Response::new(Full::new(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, MESSAGE);
        if let Ok(age) = HeaderValue::from_str(&format!("max-age={age}")) {
            headers.insert(CACHE_CONTROL, age);
        }
        response
    }
}

/// The only `dns=` parameter of a URL, in base64url without padding (RFC 8484 §4.1).
fn query_parameter(query: &str) -> Option<Vec<u8>> {
    let mut words = query.split('&').filter_map(|word| word.strip_prefix("dns="));
    let word = words.next().filter(|_| words.next().is_none())?;
    BASE64_URL_SAFE_NO_PAD.decode(word).ok()
}

/// The max-age of a reply in seconds: at most its lowest TTL (RFC 8484 §5.1).
fn max_age(reply: &[u8]) -> u32 {
    let Ok(message) = Message::read(reply) else {
        return WITHOUT_RECORDS;
    };
    if ![rcode::NOERROR, rcode::NXDOMAIN].contains(&message.rcode()) {
        return WITHOUT_RECORDS;
    }
    let records = message.records().map_while(Result::ok);
    let ttls = records.filter(|record| record.kind != kind::OPT).map(|record| {
        let octets = reply[record.ttl_at..].first_chunk::<4>();
        octets.map_or(0, |octets| u32::from_be_bytes(*octets))
    });
    ttls.min().map_or(WITHOUT_RECORDS, |ttl| ttl.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_the_only_dns_parameter_in_base64url() {
        for (query, found) in [
            ("dns=AAEB", Some(vec![0, 1, 1])),
            ("x=1&dns=_-8", Some(vec![0xff, 0xef])),
            ("dns=", Some(vec![])),
            ("dns=AAEB&dns=AAEB", None),
            ("dns=AA==", None),
            ("dns=+/8", None),
            ("DNS=AAEB", None),
            ("", None),
        ] {
            assert_eq!(query_parameter(query), found, "{query}");
        }
    }
}
