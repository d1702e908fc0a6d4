//! Requests to the enforcer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use egret_shared::cni::{MAX_LINE, Reply, Request};

/// How often an enforcer that is away is looked for.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// How much longer than the enforcer the plugin waits, to read why.
const REPLY_WITHIN: Duration = Duration::from_millis(500);

/// Asks until the enforcer answers, at most so long: it may be away, or end while it is asked.
///
/// # Errors
/// Why there was no answer.
pub(crate) fn ask(
    socket: &Path,
    wait: Duration,
    request: impl Fn(Duration) -> Request,
) -> Result<Reply, String> {
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match ask_once(socket, &request(left), left + REPLY_WITHIN) {
            Ok(reply) => return Ok(reply),
            Err(error) if left <= RETRY_AFTER => {
                return Err(format!(
                    "the enforcer does not answer at {}: {error}",
                    socket.display()
                ));
            }
            Err(_tried_again) => thread::sleep(RETRY_AFTER),
        }
    }
}

fn ask_once(socket: &Path, request: &Request, wait: Duration) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(wait))?;
    stream.set_write_timeout(Some(wait))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = String::new();
    BufReader::new(stream)
        .take(MAX_LINE as u64)
        .read_line(&mut reply)?;
    if reply.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it ended before it answered",
        ));
    }
    Ok(serde_json::from_str(&reply)?)
}
