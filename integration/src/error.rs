//! Why a part of the world could not be made or asked.

use std::{io, path::PathBuf};

/// What went wrong, in which part of the world.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// Namespaces need privileges.
    #[error(
        "a world needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN): run the tests as root, or in a privileged container"
    )]
    NotRoot,
    /// A namespace could not be made or entered.
    #[error("namespace {name}: {doing}: {source}")]
    Namespace {
        name: String,
        doing: &'static str,
        source: io::Error,
    },
    /// A file of the world.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A program did not start.
    #[error("cannot run `{argv}`: {source}")]
    Spawn { argv: String, source: io::Error },
    /// A program ended with an error.
    #[error("`{argv}` ended with {status}: {stderr}")]
    Failed {
        argv: String,
        status: String,
        stderr: String,
    },
    /// A server of the upstream network or of a pod could not be bound.
    #[error("cannot serve on port {port}: {source}")]
    Serve { port: u16, source: io::Error },
    /// No cgroup2 hierarchy is mounted on this machine.
    #[error("no cgroup2 mount in /proc/mounts; the eBPF backend cannot be tested here")]
    NoCgroup2,
    /// A daemon's binary is not where it should be.
    #[error("{} does not exist: build the workspace first (cargo build), or name its folder in EGRET_BIN_DIR", path.display())]
    NoBinary { path: PathBuf },
    /// A daemon did not become ready.
    #[error("{program} is not ready after {waited_ms} ms ({state}); its log ends:\n{log}")]
    NotReady {
        program: String,
        waited_ms: u128,
        state: String,
        log: String,
    },
    /// A daemon's admin listener could not be asked.
    #[error("GET http://{admin}{path}: {source}")]
    Admin {
        admin: std::net::SocketAddr,
        path: String,
        source: io::Error,
    },
}

impl WorldError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
