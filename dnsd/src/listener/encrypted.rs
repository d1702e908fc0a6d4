//! The sockets of encrypted blocks: one for each scheme and address.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use egret_shared::rt::task;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::quic::QuicListener;
use super::{ListenError, Service, quic_socket, tcp, watch};
use crate::config::model::Scheme;
use crate::takeover::{InheritedSockets, SocketName, SocketPurpose};
use crate::zones::{EncryptedTables, Listener, ZoneTable};

/// Bound sockets without listeners.
#[derive(Debug, Default)]
pub struct EncryptedListeners(Vec<Bound>);

#[derive(Debug)]
struct Bound {
    scheme: Scheme,
    port: Arc<Listener>,
    socket: Socket,
    /// A descriptor of the same socket, for a new process.
    kept: OwnedFd,
}

#[derive(Debug)]
enum Socket {
    Connections(TcpListener),
    Quic(QuicListener),
}

/// The running listeners.
#[derive(Debug, Default)]
pub(super) struct Listening {
    open: BTreeMap<(Scheme, SocketAddr), Open>,
}

#[derive(Debug)]
struct Open {
    port: Arc<Listener>,
    /// Ends the listener, and its connections when they are idle.
    close: CancellationToken,
    /// Ends the listener only.
    pause: CancellationToken,
    kept: OwnedFd,
    /// The QUIC endpoint, which owns its connections and continues after a pause.
    quic: Option<QuicListener>,
}

impl EncryptedListeners {
    /// Binds all of the addresses, or none; inherited sockets are not bound again.
    pub(super) fn bind<'a>(
        tables: impl IntoIterator<Item = (&'a (Scheme, SocketAddr), &'a Arc<ZoneTable>)>,
        inheritance: &mut InheritedSockets,
    ) -> Result<Self, ListenError> {
        let mut bound = Vec::new();
        for ((scheme, address), table) in tables {
            match Bound::new(*scheme, *address, table, inheritance) {
                Ok(socket) => bound.push(socket),
                Err(source) => {
                    let error = ListenError {
                        address: *address,
                        transport: scheme.name(),
                        source,
                    };
                    if !address.ip().is_unspecified() || !error.is_without_ipv6() {
                        return Err(error);
                    }
                    tracing::info!(%address, "this host has no IPv6");
                }
            }
        }
        Ok(Self(bound))
    }
}

const fn purpose(scheme: Scheme) -> SocketPurpose {
    match scheme {
        Scheme::Dns | Scheme::Tls => SocketPurpose::Tls,
        Scheme::Https => SocketPurpose::Https,
        Scheme::Quic => SocketPurpose::Quic,
    }
}

impl Bound {
    fn new(
        scheme: Scheme,
        address: SocketAddr,
        table: &Arc<ZoneTable>,
        inheritance: &mut InheritedSockets,
    ) -> io::Result<Self> {
        let purpose = purpose(scheme);
        let inherited = inheritance.socket(SocketName { purpose, address });
        let (socket, kept) = if scheme == Scheme::Quic {
            let bound = inherited.map_or_else(|| quic_socket::bind(address), Ok)?;
            let listener = QuicListener::new(bound, table)?;
            let kept = listener.descriptor()?;
            (Socket::Quic(listener), kept)
        } else {
            let listener = inherited.map_or_else(|| tcp::bind(address), tcp::inherit)?;
            let kept = listener.as_fd().try_clone_to_owned()?;
            (Socket::Connections(listener), kept)
        };
        Ok(Self {
            scheme,
            kept,
            socket,
            port: Arc::new(Listener::new(address, Arc::clone(table))),
        })
    }
}

impl Listening {
    /// Binds the addresses that have no listener yet.
    pub(super) fn bind(&self, tables: &EncryptedTables) -> Result<EncryptedListeners, ListenError> {
        let new = tables.iter().filter(|(key, _)| !self.open.contains_key(key));
        EncryptedListeners::bind(new, &mut InheritedSockets::none())
    }

    /// Gives each socket that stays its zone table, and closes the others.
    pub(super) fn adopt(&mut self, tables: &EncryptedTables) {
        for (key, open) in &self.open {
            match tables.get(key) {
                Some(table) => open.port.set(Arc::clone(table)),
                None => open.close.cancel(),
            }
        }
        self.open.retain(|key, _| tables.contains_key(key));
    }

    /// Listens on further sockets; `tasks` receives their tasks.
    pub(super) fn open(
        &mut self,
        listeners: EncryptedListeners,
        service: &Service,
        tasks: &mut JoinSet<bool>,
    ) {
        for bound in listeners.0 {
            let close = service.stop.child_token();
            self.listen(bound, close, service, tasks);
        }
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = (SocketName, BorrowedFd<'_>)> {
        self.open.iter().map(|((scheme, address), open)| {
            let name = SocketName {
                purpose: purpose(*scheme),
                address: *address,
            };
            (name, open.kept.as_fd())
        })
    }

    /// Stops accepting, and waits a short time for handshakes and queries of QUIC.
    pub(super) async fn pause(&self) {
        self.open.values().for_each(|open| open.pause.cancel());
        for listener in self.open.values().filter_map(|open| open.quic.as_ref()) {
            listener.settle().await;
        }
    }

    /// Accepts again after a pause.
    pub(super) fn resume(&mut self, service: &Service, tasks: &mut JoinSet<bool>) -> io::Result<()> {
        let mut again = Vec::new();
        for open in self.open.values() {
            again.push(match &open.quic {
                Some(listener) => Socket::Quic(listener.clone()),
                None => Socket::Connections(tcp::inherit(open.kept.try_clone()?)?),
            });
        }
        for (((scheme, _), open), socket) in std::mem::take(&mut self.open).into_iter().zip(again) {
            let Open {
                port,
                close,
                kept,
                pause: _ended,
                quic: _again,
            } = open;
            let bound = Bound {
                scheme,
                port,
                socket,
                kept,
            };
            self.listen(bound, close, service, tasks);
        }
        Ok(())
    }

    /// Closes the duplicated descriptors. Packets of QUIC connections arrive at the new process, which has no keys for
    /// them: these connections end when all queries that were read are answered.
    pub(super) fn release(&mut self) {
        for open in std::mem::take(&mut self.open).into_values() {
            if open.quic.is_some() {
                open.close.cancel();
            }
        }
    }

    fn listen(
        &mut self,
        bound: Bound,
        close: CancellationToken,
        service: &Service,
        tasks: &mut JoinSet<bool>,
    ) {
        let Bound {
            scheme,
            port,
            socket,
            kept,
        } = bound;
        let pause = close.child_token();
        let close_tokens = tcp::CloseTokens {
            listener: pause.clone(),
            connections: close.clone(),
        };
        let (service, of_listener, name) = (service.clone(), Arc::clone(&port), scheme.name());
        let (listening, quic) = match socket {
            Socket::Connections(socket) => {
                let listening = tcp::serve(socket, of_listener, service, close_tokens);
                (task::spawn(name, listening), None)
            }
            Socket::Quic(listener) => {
                let listening = listener.clone().serve(of_listener, service, close_tokens);
                (task::spawn(name, listening), Some(listener))
            }
        };
        watch(tasks, listening, pause.clone());
        self.open.insert(
            (scheme, port.address),
            Open {
                port,
                close,
                pause,
                kept,
                quic,
            },
        );
    }
}
