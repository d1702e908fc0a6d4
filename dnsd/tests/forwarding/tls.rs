//! TLS towards upstreams (RFC 7858): an upstream must prove its name before it is queried.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egret_dnsd::config::model::{self, Forward, Protocol, Tls, UpstreamHost};
use egret_dnsd::upstream::Metrics;
use egret_dnsd::upstream::{Failure, Forwarder, InvalidForward};
use egret_shared::rt::task;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{HandshakeKind, RootCertStore, ServerConfig};

use super::world::{
    LOOPBACK, ReceivedQuery, Transport, ask, forwarder, framed, owner, plan, read_framed, until,
};

/// Somebody whom others trust, with a folder for what it writes.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Authority {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("egret-tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    fn issue(&self, name: &str) -> (CertificateDer<'static>, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), key)
    }

    /// Certificate and key of a client, as files.
    fn client(&self) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let paths = (self.folder.join("client.pem"), self.folder.join("client.key"));
        fs::write(&paths.0, certificate.pem()).unwrap();
        fs::write(&paths.1, key.serialize_pem()).unwrap();
        paths
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// An upstream that is spoken to over TLS, and answers each question with one address.
struct Protected {
    address: SocketAddr,
    handshakes: Arc<Mutex<Vec<HandshakeKind>>>,
    asked: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Protected {
    async fn start(authority: &Authority, name: &str, wants_client: bool) -> Self {
        let (certificate, key) = authority.issue(name);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if wants_client {
            let mut roots = RootCertStore::empty();
            roots.add(authority.issuer.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config = builder.with_single_cert(vec![certificate], key).unwrap();
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            handshakes: Arc::default(),
            asked: Arc::default(),
            open: Arc::default(),
        };
        let (handshakes, asked) = (Arc::clone(&upstream.handshakes), Arc::clone(&upstream.asked));
        let open = Arc::clone(&upstream.open);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        drop(task::spawn_brief(async move {
            loop {
                let (stream, from) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let kind = stream.get_ref().1.handshake_kind().unwrap();
                handshakes.lock().unwrap().push(kind);
                let (asked, open) = (Arc::clone(&asked), Arc::clone(&open));
                drop(task::spawn_brief(async move {
                    open.fetch_add(1, Ordering::Relaxed);
                    while let Some(octets) = read_framed(&mut stream).await {
                        asked.fetch_add(1, Ordering::Relaxed);
                        let question = ReceivedQuery {
                            octets,
                            over: Transport::Tcp,
                            from,
                        };
                        stream.write_all(&framed(&question.one())).await.unwrap();
                    }
                    open.fetch_sub(1, Ordering::Relaxed);
                }));
            }
        }));
        upstream
    }

    fn plan(&self, server_name: Option<&str>, tls: Tls) -> Forward {
        Forward {
            to: vec![model::Upstream {
                host: UpstreamHost::Address(self.address),
                protocol: Protocol::Tls,
                server_name: server_name.map(str::to_owned),
            }],
            tls,
            max_connect_attempts: Some(1),
            ..plan(&[])
        }
    }
}

fn trusting(authorities: &Path) -> Tls {
    Tls {
        authorities: Some(authorities.to_owned()),
        ..Tls::default()
    }
}

#[tokio::test]
async fn only_an_upstream_with_a_valid_certificate_is_queried() {
    let (trusted, other) = (Authority::new("trusted"), Authority::new("other"));
    let named = Protected::start(&trusted, "dns.test", false).await;
    let numbered = Protected::start(&trusted, "127.0.0.1", false).await;
    let with_name = |name: &str| Tls {
        server_name: Some(name.to_owned()),
        ..trusting(&trusted.certificate())
    };
    // Upstream, name behind its address, name of all, whom to trust, whether it is asked.
    let rows = [
        ("of all", &named, None, with_name("dns.test"), true),
        ("of all, absolute", &named, None, with_name("dns.test."), true),
        (
            "its own",
            &named,
            Some("dns.test"),
            trusting(&trusted.certificate()),
            true,
        ),
        ("another of all", &named, None, with_name("other.test"), false),
        (
            "another of its own",
            &named,
            Some("other.test"),
            with_name("dns.test"),
            false,
        ),
        (
            "its address, which it is not",
            &named,
            None,
            trusting(&trusted.certificate()),
            false,
        ),
        (
            "its address",
            &numbered,
            None,
            trusting(&trusted.certificate()),
            true,
        ),
        (
            "another authority",
            &named,
            Some("dns.test"),
            trusting(&other.certificate()),
            false,
        ),
        (
            "the host's authorities",
            &named,
            Some("dns.test"),
            Tls::default(),
            false,
        ),
    ];
    for (what, upstream, own, tls, is_asked) in rows {
        let made = Forwarder::new(&upstream.plan(own, tls), Arc::new(Metrics::register()));
        let Ok(forwarder) = made else {
            assert!(what.starts_with("the host's"), "{what}: a host may have none");
            continue;
        };
        let before = upstream.asked.load(Ordering::Relaxed);
        let answer = ask(&forwarder, "a.test").await.map(|answer| owner(&answer));
        let wanted = if is_asked {
            Ok("a.test.".to_owned())
        } else {
            Err(Failure::Unproven)
        };
        assert_eq!(answer, wanted, "{what}");
        let asked = upstream.asked.load(Ordering::Relaxed) - before;
        assert_eq!(
            asked,
            usize::from(is_asked),
            "{what}: not even the question is told"
        );
    }
}

#[tokio::test]
async fn a_client_certificate_is_sent_on_request() {
    let authority = Authority::new("client");
    let upstream = Protected::start(&authority, "dns.test", true).await;
    let without = upstream.plan(Some("dns.test"), trusting(&authority.certificate()));
    assert!(ask(&forwarder(&without), "a.test").await.is_err());
    let with = upstream.plan(
        Some("dns.test"),
        Tls {
            identity: Some(authority.client()),
            ..trusting(&authority.certificate())
        },
    );
    assert_eq!(owner(&ask(&forwarder(&with), "a.test").await.unwrap()), "a.test.");
}

#[tokio::test]
async fn connections_are_shared_and_sessions_resumed() {
    let authority = Authority::new("resumed");
    let upstream = Protected::start(&authority, "dns.test", false).await;
    let forwarder = forwarder(&Forward {
        expire: Duration::from_millis(80),
        ..upstream.plan(Some("dns.test"), trusting(&authority.certificate()))
    });
    for number in 0..10 {
        ask(&forwarder, &format!("n{number}.test")).await.unwrap();
    }
    until("it ends", || upstream.open.load(Ordering::Relaxed) == 0).await;
    ask(&forwarder, "later.test").await.unwrap();
    let handshakes = upstream.handshakes.lock().unwrap().clone();
    assert_eq!(handshakes, [HandshakeKind::Full, HandshakeKind::Resumed]);
}

#[tokio::test]
async fn an_upstream_without_tls_gets_no_cleartext_query() {
    let authority = Authority::new("clear");
    let clear = super::world::Upstream::honest().await;
    let upstream = Protected {
        address: clear.address,
        handshakes: Arc::default(),
        asked: Arc::default(),
        open: Arc::default(),
    };
    let forwarder = forwarder(&Forward {
        read_timeout: Duration::from_millis(300),
        ..upstream.plan(Some("dns.test"), trusting(&authority.certificate()))
    });
    assert!(ask(&forwarder, "a.test").await.is_err());
    assert_eq!(clear.asked(), 0);
}

#[tokio::test]
async fn invalid_certificate_files_are_named() {
    let authority = Authority::new("files");
    let empty = authority.folder.join("empty.pem");
    fs::write(&empty, "nothing\n").unwrap();
    let (certificate, key) = authority.client();
    let ca = authority.certificate();
    let rows = [
        (Some(empty.clone()), None, "empty.pem"),
        (Some(authority.folder.join("none.pem")), None, "none.pem"),
        (Some(ca.clone()), Some((empty.clone(), key.clone())), "empty.pem"),
        (
            Some(ca.clone()),
            Some((certificate.clone(), empty.clone())),
            "empty.pem",
        ),
        (Some(ca.clone()), Some((ca.clone(), key.clone())), "ca.pem"),
    ];
    for (authorities, identity, named) in rows {
        let plan = Forward {
            tls: Tls {
                authorities,
                identity,
                server_name: None,
            },
            ..plan(&["127.0.0.1:1".parse().unwrap()])
        };
        let made = Forwarder::new(&plan, Arc::new(Metrics::register()));
        let Err(error @ InvalidForward::Tls { .. }) = made else {
            panic!("{named} is taken");
        };
        assert!(error.to_string().contains(named), "{error}");
    }
}
