//! Options of the connections between server and agent.

use std::io;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

/// After so long without an acknowledgement the kernel gives a connection up (`TCP_USER_TIMEOUT`, tcp(7)).
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}
