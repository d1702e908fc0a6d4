//! What the agent connects to.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::process::PATIENCE;

/// A listener on loopback that serves each connection in the same way until the test ends.
pub(crate) struct Target {
    address: SocketAddr,
    collected: Receiver<Vec<u8>>,
}

impl Target {
    /// Sends back what comes.
    pub(crate) fn echo() -> Self {
        Self::serve(|mut stream| {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(length) = stream.read(&mut buffer)
                && length > 0
                && stream.write_all(&buffer[..length]).is_ok()
            {}
            Vec::new()
        })
    }

    /// Sends these octets when the first one comes, and closes.
    pub(crate) fn answer_and_close(octets: Vec<u8>) -> Self {
        Self::serve(move |mut stream| {
            if stream.read_exact(&mut [0]).is_ok() {
                // The client may be cut off before.
                drop(stream.write_all(&octets));
            }
            Vec::new()
        })
    }

    /// Answers each request with this page.
    pub(crate) fn http(page: Vec<u8>) -> Self {
        Self::serve(move |mut stream| {
            let mut request = [0; 4096];
            if stream.read(&mut request).is_ok_and(|length| length > 0) {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    page.len()
                );
                drop(stream.write_all(&[head.as_bytes(), &page].concat()));
            }
            Vec::new()
        })
    }

    /// Keeps what comes until the client closes.
    pub(crate) fn collect() -> Self {
        Self::serve(|mut stream| {
            let mut octets = Vec::new();
            drop(stream.read_to_end(&mut octets));
            octets
        })
    }

    /// What came by the first connection that ended.
    pub(crate) fn collected(&self) -> Vec<u8> {
        self.collected.recv_timeout(PATIENCE).unwrap()
    }

    fn serve(serve: impl Fn(TcpStream) -> Vec<u8> + Send + Sync + 'static) -> Self {
        // Every address of loopback is one of it.
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, collected) = channel();
        let serve = std::sync::Arc::new(serve);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
                let (serve, sender) = (std::sync::Arc::clone(&serve), sender.clone());
                std::thread::spawn(move || drop(sender.send(serve(stream))));
            }
        });
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            collected,
        }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// An address where nobody listens.
    pub(crate) fn closed() -> String {
        format!("127.0.0.1:{}", super::process::free_port())
    }
}

/// A port from which each connection goes to one of these, by chance.
pub(crate) fn balance(backends: Vec<SocketAddr>) -> u16 {
    let port = super::process::free_port();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let backend = backends[rand::random_range(0..backends.len())];
            // A server that is gone refuses: the client sees its connection end.
            let Ok(server) = TcpStream::connect(backend) else {
                continue;
            };
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pass(&mut from, &mut to));
            let (mut from, mut to) = (server, client);
            std::thread::spawn(move || pass(&mut from, &mut to));
        }
    });
    port
}

fn pass(from: &mut TcpStream, to: &mut TcpStream) {
    // However it ends, the other direction ends with it.
    drop(std::io::copy(from, to));
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}
