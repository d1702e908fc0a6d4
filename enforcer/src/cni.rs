//! The socket of the CNI plugin `egret-cni`: it reports pods' networks and waits until their rules are in force. What it
//! reported to an earlier enforcer is in a folder, which only the plugin writes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use egret_shared::cni::{MAX_LINE, Network, Reply, Request, network_folder};
use egret_shared::rt::{clock, task};
use metrics::counter;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use crate::engine::{Input, NetworkRequest};
use crate::metrics::describe_counters;
use crate::unix_socket;

const REQUESTS: &str = "egret_enforcer_cni_requests_total";
const COMMANDS: [&str; 4] = ["add", "check", "del", "status"];
/// The last: the plugin ended before there was an answer.
const OUTCOMES: [&str; 3] = ["ready", "not-ready", "left"];

/// How long after a failure the socket is bound again. The enforcer before may still listen.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The mode of the socket.
const ROOT_ALONE: u32 = 0o600;
/// How long a request may take to arrive.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// The longest wait that a request may ask for: a runtime gives up sooner.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Reads the networks that exist. One that cannot be read is left out: its pod becomes known by its Pod object.
#[must_use]
pub fn read_networks(socket: &Path) -> Vec<Network> {
    let folder = network_folder(socket);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        // The plugin makes it with the first network.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "the networks of pods cannot be listed");
            return Vec::new();
        }
    };
    let files = entries.flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.filter_map(|path| read_network(&path)).collect()
}

fn read_network(path: &Path) -> Option<Network> {
    let read = std::fs::read(path).and_then(|octets| Ok(serde_json::from_slice(&octets)?));
    match read {
        Ok(network) => Some(network),
        // It was removed since the folder was listed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "the network of a pod cannot be read; its pod is known when its Pod object has addresses");
            None
        }
    }
}

/// Registers the metrics, at 0.
fn register() {
    describe_counters(&[(REQUESTS, "Requests of the CNI plugin, by command and outcome.")]);
    for command in COMMANDS {
        for outcome in OUTCOMES {
            counter!(REQUESTS, "command" => command, "outcome" => outcome).absolute(0);
        }
    }
}

/// Answers the plugin until the engine ends.
pub async fn serve(path: PathBuf, engine: mpsc::Sender<Input>) {
    register();
    let Some(listener) = bind(&path, &engine).await else {
        return;
    };
    // A network that was removed while nobody listened is gone now.
    let known = NetworkRequest::Known(read_networks(&path));
    if engine.send(Input::Network(known)).await.is_err() {
        return;
    }
    tracing::info!(path = %path.display(), "listening for the CNI plugin");
    while !engine.is_closed() {
        match listener.accept().await {
            Ok((stream, _)) => drop(task::spawn("cni", serve_plugin(stream, engine.clone()))),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a connection of the CNI plugin is refused");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Binds the socket, however often it takes; none once the engine ended.
async fn bind(path: &Path, engine: &mpsc::Sender<Input>) -> Option<UnixListener> {
    let mut is_logged = false;
    while !engine.is_closed() {
        match unix_socket::bind(path, ROOT_ALONE) {
            Ok(listener) => return Some(listener),
            Err(error) if !is_logged => {
                is_logged = true;
                tracing::warn!(path = %path.display(), %error, "the CNI plugin is not heard; it is tried again each second");
            }
            Err(_same) => {}
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
    None
}

async fn serve_plugin(mut stream: UnixStream, engine: mpsc::Sender<Input>) {
    let answered = async {
        check_peer(&stream)?;
        let request = tokio::time::timeout(REQUEST_WITHIN, read_request(&mut stream)).await?;
        let result = match request {
            Ok(request) => {
                let command = command(&request);
                let result = ask(request, &mut stream, &engine).await?;
                let outcome = match &result {
                    Some(Ok(())) => "ready",
                    Some(Err(_)) => "not-ready",
                    None => "left",
                };
                counter!(REQUESTS, "command" => command, "outcome" => outcome).increment(1);
                result
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Some(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        let Some(result) = result else {
            return Ok(());
        };
        let reply = match result {
            Ok(()) => Reply::Ready,
            Err(reason) => Reply::NotReady { reason },
        };
        let mut line = serde_json::to_vec(&reply)?;
        line.push(b'\n');
        stream.write_all(&line).await
    };
    if let Err(error) = answered.await {
        tracing::warn!(%error, "a request of the CNI plugin is not answered");
    }
}

const fn command(request: &Request) -> &'static str {
    match request {
        Request::Add { .. } => COMMANDS[0],
        Request::Check { .. } => COMMANDS[1],
        Request::Del { .. } => COMMANDS[2],
        Request::Status => COMMANDS[3],
    }
}

/// The socket's mode refuses others already, unless somebody changes it.
fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    if user == 0 {
        return Ok(());
    }
    let reason = format!("user {user} asks, and only root may");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

async fn read_request(stream: &mut UnixStream) -> io::Result<Request> {
    let mut line = Vec::new();
    let mut limited = BufReader::new(stream).take(MAX_LINE as u64);
    limited.read_until(b'\n', &mut line).await?;
    serde_json::from_slice(&line).map_err(|error| {
        let reason = format!("the request is not understood: {error}");
        io::Error::new(io::ErrorKind::InvalidData, reason)
    })
}

/// The result of a request; none if the plugin left.
async fn ask(
    request: Request,
    stream: &mut UnixStream,
    engine: &mpsc::Sender<Input>,
) -> io::Result<Option<Result<(), String>>> {
    let (reply, replied) = oneshot::channel();
    let request = match request {
        Request::Add { network, wait_millis } => NetworkRequest::Add {
            network,
            deadline: clock::now().after(Duration::from_millis(wait_millis).min(LONGEST_WAIT)),
            reply,
        },
        Request::Check { network } => NetworkRequest::Check { network, reply },
        Request::Del { container, interface } => NetworkRequest::Remove {
            container,
            interface,
            reply,
        },
        Request::Status => NetworkRequest::Status { reply },
    };
    let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the engine ended");
    engine
        .send(Input::Network(request))
        .await
        .map_err(|_ended| ended())?;
    tokio::select! {
        replied = replied => replied.map(Some).map_err(|_ended| ended()),
        // A plugin says nothing more, so what can be read is its end.
        _left = stream.read_u8() => Ok(None),
    }
}
