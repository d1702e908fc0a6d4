//! The sockets at which queries are encrypted: one for each scheme and address.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use egret_shared::rt::task;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{ListenError, Service, tcp, watch};
use crate::config::model::Scheme;
use crate::takeover::{Inheritance, Name, Purpose};
use crate::zones::{EncryptedTables, Port, Table};

/// Bound sockets, on which nobody listens yet.
#[derive(Debug, Default)]
pub struct EncryptedListeners(Vec<Bound>);

#[derive(Debug)]
struct Bound {
    scheme: Scheme,
    port: Arc<Port>,
    socket: TcpListener,
    /// A descriptor of the same socket, for a successor, or to listen again.
    kept: OwnedFd,
}

/// Sockets that are listened on.
#[derive(Debug, Default)]
pub(super) struct Listening {
    open: BTreeMap<(Scheme, SocketAddr), Open>,
}

#[derive(Debug)]
struct Open {
    port: Arc<Port>,
    /// Ends the listener and, when they have nothing under way, the connections.
    close: CancellationToken,
    /// Ends the listener alone.
    pause: CancellationToken,
    kept: OwnedFd,
}

impl EncryptedListeners {
    /// Binds all of the addresses, or none; what was inherited is not bound again.
    pub(super) fn bind<'a>(
        tables: impl IntoIterator<Item = (&'a (Scheme, SocketAddr), &'a Arc<Table>)>,
        inheritance: &mut Inheritance,
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

const fn purpose(scheme: Scheme) -> Purpose {
    match scheme {
        Scheme::Dns | Scheme::Tls => Purpose::Tls,
        Scheme::Https => Purpose::Https,
        Scheme::Quic => Purpose::Quic,
    }
}

impl Bound {
    fn new(
        scheme: Scheme,
        address: SocketAddr,
        table: &Arc<Table>,
        inheritance: &mut Inheritance,
    ) -> io::Result<Self> {
        let purpose = purpose(scheme);
        let socket = match inheritance.socket(Name { purpose, address }) {
            Some(socket) => tcp::inherit(socket)?,
            None => tcp::bind(address)?,
        };
        Ok(Self {
            scheme,
            kept: socket.as_fd().try_clone_to_owned()?,
            socket,
            port: Arc::new(Port::new(address, Arc::clone(table))),
        })
    }
}

impl Listening {
    /// Binds what is not listened on yet.
    pub(super) fn bind(&self, tables: &EncryptedTables) -> Result<EncryptedListeners, ListenError> {
        let new = tables.iter().filter(|(place, _)| !self.open.contains_key(place));
        EncryptedListeners::bind(new, &mut Inheritance::none())
    }

    /// Gives each socket that stays its table, and closes those that go.
    pub(super) fn adopt(&mut self, tables: &EncryptedTables) {
        for (place, open) in &self.open {
            match tables.get(place) {
                Some(table) => open.port.set(Arc::clone(table)),
                None => open.close.cancel(),
            }
        }
        self.open.retain(|place, _| tables.contains_key(place));
    }

    /// Listens on further sockets, in these tasks.
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

    pub(super) fn sockets(&self) -> impl Iterator<Item = (Name, BorrowedFd<'_>)> {
        self.open.iter().map(|((scheme, address), open)| {
            let name = Name {
                purpose: purpose(*scheme),
                address: *address,
            };
            (name, open.kept.as_fd())
        })
    }

    /// Accepts no more.
    pub(super) fn pause(&self) {
        self.open.values().for_each(|open| open.pause.cancel());
    }

    /// Accepts again after a pause.
    pub(super) fn resume(&mut self, service: &Service, tasks: &mut JoinSet<bool>) -> io::Result<()> {
        let mut again = Vec::new();
        for open in self.open.values() {
            again.push(tcp::inherit(open.kept.try_clone()?)?);
        }
        for (((scheme, _), open), socket) in std::mem::take(&mut self.open).into_iter().zip(again) {
            let Open {
                port,
                close,
                kept,
                pause: _ended,
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

    /// Keeps no descriptors any more.
    pub(super) fn release(&mut self) {
        self.open.clear();
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
        let ends = tcp::Ends {
            listener: pause.clone(),
            connections: close.clone(),
        };
        let listening = tcp::serve(socket, Arc::clone(&port), service.clone(), ends);
        watch(tasks, task::spawn(scheme.name(), listening), pause.clone());
        self.open.insert(
            (scheme, port.address),
            Open {
                port,
                close,
                pause,
                kept,
            },
        );
    }
}
