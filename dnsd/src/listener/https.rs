//! DNS over HTTPS (RFC 8484), by HTTP/2 or HTTP/1.1: a query is the body of a POST or a word of a GET.
//!
//! Status codes are those of CoreDNS: 404 for another path, 400 for what is no query, 500 where no reply is due.

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
use super::tcp::{Caller, Door, MAX_PIPELINED, UNWRITTEN};
use crate::config::model::Timeouts;
use crate::dns::message::{HEADER, Message, kind, rcode};
use crate::limits::permits::Permit;
use crate::pipeline::{Disposition, ReceivedAt};

/// The path of queries (plugin/pkg/doh of CoreDNS).
const PATH: &str = "/dns-query";
/// The type of a message (RFC 8484 §6).
const MESSAGE: HeaderValue = HeaderValue::from_static("application/dns-message");
/// Octets of the headers of a request. A query that is longer can be sent in a body.
const MAX_HEADERS: u32 = 16 << 10;
/// How long a reply counts at most that has records, and how long one that has none (plugin/pkg/dnsutil of CoreDNS).
const LONGEST: u32 = 3_600;
const WITHOUT_RECORDS: u32 = 5;

/// Answers requests, until the client, its patience or the listener ends the connection.
pub(super) async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    caller: Caller,
    door: Door,
    timeouts: Timeouts,
) {
    let cut = caller.cut.clone();
    let context = Arc::new(ConnectionContext {
        caller,
        door,
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
            context.door.service.metrics.tcp_cut.increment(1);
            return;
        }
        () = context.activity.idle(timeouts.idle) => {}
        () = context.door.close.cancelled() => {}
    }
    // A client that hears so sends no more requests; those that it has sent are answered.
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

fn builder(timeouts: Timeouts) -> Builder<Spawn> {
    let mut builder = Builder::new(Spawn);
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

/// Requests of one connection are answered side by side.
#[derive(Clone, Copy, Debug)]
struct Spawn;

impl<F> hyper::rt::Executor<F> for Spawn
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, answering: F) {
        drop(task::spawn_brief(answering));
    }
}

/// What the requests of a connection share.
struct ConnectionContext {
    caller: Caller,
    door: Door,
    timeouts: Timeouts,
    activity: Activity,
}

/// A reply that is not written yet, with what it takes of what its client may leave unread.
struct Unwritten {
    reply: Vec<u8>,
    _place: Permit<CancellationToken>,
}

impl AsRef<[u8]> for Unwritten {
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
        let server = self.door.port.table().server();
        let status_label = status.as_str().to_owned();
        counter!("coredns_dns_https_responses_total", "server" => server, "status" => status_label)
            .increment(1);
        *response.status_mut() = status;
        response
    }

    /// The octets of a query.
    async fn query(&self, request: Request<Incoming>) -> Result<Vec<u8>, StatusCode> {
        if request.uri().path() != PATH {
            return Err(StatusCode::NOT_FOUND);
        }
        let query = match *request.method() {
            Method::GET => of_url(request.uri().query().unwrap_or_default()),
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
        let (service, arrival) = (&self.door.service, self.caller.arrival);
        let table = self.door.port.table();
        let step = service.resolver.answer(query, arrival, &table, ReceivedAt::now());
        let reply = match step {
            Disposition::NoReply => None,
            Disposition::Reply(reply) => Some(reply),
            Disposition::Pending(pending) => {
                // In a task of its own: who goes away has the others wait for nothing less.
                let waiting = service.under_way.track_future(pending.reply());
                task::spawn_brief(waiting).await.ok().flatten()
            }
        };
        reply.ok_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn response(&self, reply: Vec<u8>) -> Response<Full<Bytes>> {
        let age = max_age(&reply);
        let (unwritten, caller) = (&self.door.service.unwritten, &self.caller);
        let taken = unwritten.take(caller.quota_key, reply.len(), UNWRITTEN, caller.cut.clone());
        let Some(place) = taken else {
            caller.cut.cancel();
            return Response::new(Full::default());
        };
        let body = Bytes::from_owner(Unwritten { reply, _place: place });
        let mut response = Response::new(Full::new(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, MESSAGE);
        if let Ok(age) = HeaderValue::from_str(&format!("max-age={age}")) {
            headers.insert(CACHE_CONTROL, age);
        }
        response
    }
}

/// The only `dns=` of a URL, in base64url without padding (RFC 8484 §4.1).
fn of_url(query: &str) -> Option<Vec<u8>> {
    let mut words = query.split('&').filter_map(|word| word.strip_prefix("dns="));
    let word = words.next().filter(|_| words.next().is_none())?;
    BASE64_URL_SAFE_NO_PAD.decode(word).ok()
}

/// Seconds for which a reply may be kept: no more than its records may (RFC 8484 §5.1).
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
    fn a_query_is_the_only_word_of_its_name_in_base64url() {
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
            assert_eq!(of_url(query), found, "{query}");
        }
    }
}
