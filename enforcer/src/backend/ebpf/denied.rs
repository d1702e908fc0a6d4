//! Sockets whose connections a change of policy denied: the programs list them, and they are ended here, so that their
//! program sees ECONNABORTED instead of a timeout.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use egret_kernel::Transport;
use egret_kernel::sock_diag::{Connection, Sockets};

use super::cgroup::PodCgroups;
use super::layout::parse_address;
use super::syscall::Map;
use crate::backend::{ConnectionSearch, EndedConnections, SearchResult};

/// `sizeof(struct denied_socket)`.
const KEY_SIZE: usize = 56;

/// How long a search waits for the first packet of a denied connection. Later ones are found when drift is polled.
const WAIT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(5);

/// The map of denied sockets.
#[derive(Debug)]
pub(super) struct DeniedSockets {
    map: Arc<Map>,
}

impl DeniedSockets {
    /// Opens the pinned map.
    pub(super) fn open(pins: &Path) -> io::Result<Self> {
        let map = Map::open(&pins.join("egret_denied"), (KEY_SIZE, 1), 1)?;
        Ok(Self { map: Arc::new(map) })
    }

    /// Waits for the first denied packet.
    pub(super) fn search(&self) -> ConnectionSearch {
        let map = Arc::clone(&self.map);
        Box::new(move || {
            for _ in 0..WAIT.as_millis() / PAUSE.as_millis() {
                // What cannot be listed here fails again, with its reason, where sockets are ended.
                if map.keys().map_or(true, |keys| !keys.is_empty()) {
                    return SearchResult::Something;
                }
                std::thread::sleep(PAUSE);
            }
            SearchResult::Nothing
        })
    }

    /// Ends the sockets that are listed.
    pub(super) fn end(&self, cgroup_root: &Path) -> EndedConnections {
        let mut ended = EndedConnections::default();
        let keys = match self.take() {
            Ok(keys) => keys,
            Err(error) => {
                tracing::warn!(%error, "denied sockets cannot be listed: their programs hear by timeouts");
                return ended;
            }
        };
        if keys.is_empty() {
            return ended;
        }
        let mut by_pod: BTreeMap<u64, Vec<Connection>> = BTreeMap::new();
        for (pod, socket) in keys.iter().filter_map(|key| parse(key)) {
            by_pod.entry(pod).or_default().push(socket);
        }
        let cgroups = match PodCgroups::find(cgroup_root) {
            Ok(cgroups) => cgroups,
            Err(error) => {
                tracing::warn!(%error, "cgroups cannot be listed: programs hear of denied sockets by timeouts");
                return ended;
            }
        };
        for (pod, sockets) in by_pod {
            ended.flows += sockets.len() as u64;
            match end_in_pod(&cgroups, pod, &sockets) {
                Ok(count) => ended.sockets += count,
                Err(reason) => {
                    tracing::warn!(
                        cgroup = pod,
                        reason,
                        "programs hear of denied sockets by timeouts"
                    );
                }
            }
        }
        ended
    }

    fn take(&self) -> io::Result<Vec<Vec<u8>>> {
        let keys = self.map.keys()?;
        keys.iter().try_for_each(|key| self.map.delete(key))?;
        Ok(keys)
    }
}

fn end_in_pod(cgroups: &PodCgroups, pod: u64, held: &[Connection]) -> Result<u64, String> {
    let process = cgroups
        .process_of(pod)
        .ok_or("no process of the pod is visible, by which its network namespace is found")?;
    let path = format!("/proc/{process}/ns/net");
    let namespace = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
    let mut sockets = Sockets::open_in(namespace.as_fd()).map_err(|error| error.to_string())?;
    sockets.end_all(held).map_err(|error| error.to_string())
}

/// `struct denied_socket`; none for a protocol whose sockets cannot be ended.
fn parse(key: &[u8]) -> Option<(u64, Connection)> {
    let port = |at: usize| Some(u16::from_ne_bytes(key.get(at..at + 2)?.try_into().ok()?));
    let address = |at: usize| -> Option<IpAddr> { parse_address(key.get(at..at + 20)?) };
    let socket = Connection {
        transport: Transport::from_number(*key.get(52)?)?,
        local: SocketAddr::new(address(8)?, port(48)?),
        remote: SocketAddr::new(address(28)?, port(50)?),
    };
    Some((u64::from_ne_bytes(key.get(..8)?.try_into().ok()?), socket))
}
