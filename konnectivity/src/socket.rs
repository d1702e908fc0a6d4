//! Options of the connections between server and agent.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// After so long without an acknowledgement the kernel gives a connection up (`TCP_USER_TIMEOUT`, tcp(7)).
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// What is idle is asked for one, first and then again, so that the same is true of it.
const IDLE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(5);

pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(IDLE).with_interval(AGAIN))?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}
