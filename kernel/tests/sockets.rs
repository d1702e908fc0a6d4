//! Programs' sockets that are ended from outside, against the kernel itself, over `lo`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{in_fresh_namespace, run};
use egret_kernel::Transport::{self, Tcp, Udp};
use egret_kernel::links::Links;
use egret_kernel::sock_diag::{Connection, Sockets};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const fn connection(transport: Transport, local: SocketAddr, remote: SocketAddr) -> Connection {
    Connection {
        transport,
        local,
        remote,
    }
}

/// Both ends of a connection to a listener.
fn connect(listener: &TcpListener, to: SocketAddr) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(to).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

fn end_tcp(of: &TcpStream) -> bool {
    let (local, remote) = (of.local_addr().unwrap(), of.peer_addr().unwrap());
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    Sockets::open()
        .unwrap()
        .end(&connection(Tcp, canonical(local), canonical(remote)))
        .unwrap()
}

#[track_caller]
fn assert_aborted(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let outcome = stream.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(outcome, Err(ErrorKind::ConnectionAborted));
}

#[track_caller]
fn assert_alive(one: &mut TcpStream, other: &mut TcpStream) {
    one.write_all(b"x").unwrap();
    other.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    other.read_exact(&mut [0; 1]).unwrap();
}

#[test]
fn the_program_of_an_ended_connection_sees_it_and_others_do_not() {
    in_fresh_namespace(|| {
        for to in ["127.0.0.1:7000", "[::1]:7000"] {
            let listener = TcpListener::bind(at(to)).unwrap();
            let (mut ended, _server) = connect(&listener, at(to));
            let (mut other, mut others_server) = connect(&listener, at(to));
            assert!(end_tcp(&ended), "{to}");
            assert_aborted(&mut ended);
            assert_alive(&mut other, &mut others_server);
            let (mut later, mut laters_server) = connect(&listener, at(to));
            assert_alive(&mut later, &mut laters_server);
        }
    });
}

#[test]
fn a_connection_of_a_socket_for_both_families_is_found_as_ipv4() {
    in_fresh_namespace(|| {
        let listener = TcpListener::bind(at("127.0.0.1:7000")).unwrap();
        let (mut ended, _server) = connect(&listener, at("[::ffff:127.0.0.1]:7000"));
        assert!(ended.local_addr().unwrap().is_ipv6());
        assert!(end_tcp(&ended));
        assert_aborted(&mut ended);
    });
}

#[test]
fn the_listener_that_the_kernel_finds_in_place_of_a_connection_stays() {
    in_fresh_namespace(|| {
        let listener = TcpListener::bind(at("127.0.0.1:7000")).unwrap();
        let mut sockets = Sockets::open().unwrap();
        for (local, remote) in [
            ("127.0.0.1:7000", "127.0.0.2:9"),
            ("127.0.0.1:7000", "0.0.0.0:0"),
            ("127.0.0.1:7001", "127.0.0.2:9"),
        ] {
            assert!(
                !sockets.end(&connection(Tcp, at(local), at(remote))).unwrap(),
                "{local} {remote}"
            );
        }
        let (mut client, mut server) = connect(&listener, at("127.0.0.1:7000"));
        assert_alive(&mut client, &mut server);
    });
}

#[test]
fn a_connected_datagram_socket_is_ended_and_one_that_serves_all_stays() {
    in_fresh_namespace(|| {
        for host in ["127.0.0.1", "[::1]"] {
            let server = UdpSocket::bind(at(&format!("{host}:7000"))).unwrap();
            let connected = UdpSocket::bind(at(&format!("{host}:7001"))).unwrap();
            connected.connect(at(&format!("{host}:7000"))).unwrap();
            let mut sockets = Sockets::open().unwrap();
            let (one, other) = (server.local_addr().unwrap(), connected.local_addr().unwrap());
            assert!(
                !sockets.end(&connection(Udp, one, other)).unwrap(),
                "the server is not connected"
            );
            assert!(sockets.end(&connection(Udp, other, one)).unwrap());
            connected.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let outcome = connected.recv(&mut [0; 1]).map_err(|error| error.kind());
            assert_eq!(outcome, Err(ErrorKind::ConnectionAborted));
            let stranger = UdpSocket::bind(at(&format!("{host}:0"))).unwrap();
            stranger.send_to(b"x", one).unwrap();
            server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            assert_eq!(server.recv(&mut [0; 1]).unwrap(), 1);
        }
    });
}

#[test]
fn of_many_datagrams_the_connected_sockets_are_ended() {
    in_fresh_namespace(|| {
        let server = UdpSocket::bind(at("[::]:7000")).unwrap();
        let mapped = UdpSocket::bind(at("[::]:0")).unwrap();
        mapped.connect(at("[::ffff:127.0.0.1]:7000")).unwrap();
        let connect = |from: &str, to: &str| {
            let socket = UdpSocket::bind(at(from)).unwrap();
            socket.connect(at(to)).unwrap();
            socket
        };
        let four = connect("127.0.0.1:0", "127.0.0.1:7000");
        let six = connect("[::1]:0", "[::1]:7000");
        let other = connect("127.0.0.1:0", "127.0.0.1:7000");
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let ends = |socket: &UdpSocket| {
            let (local, remote) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
            connection(Udp, canonical(local), canonical(remote))
        };
        let client = |port| {
            let from = SocketAddr::from(([127, 0, 0, 1], port));
            connection(Udp, at("127.0.0.1:7000"), from)
        };
        let mut all: Vec<Connection> = (1..100).map(client).collect();
        all.extend([&mapped, &four, &six].map(ends));
        assert_eq!(Sockets::open().unwrap().end_all(&all).unwrap(), 3);
        for ended in [&mapped, &four, &six] {
            ended.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let outcome = ended.recv(&mut [0; 1]).map_err(|error| error.kind());
            assert_eq!(outcome, Err(ErrorKind::ConnectionAborted), "{ended:?}");
        }
        other.send(b"x").unwrap();
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(server.recv(&mut [0; 1]).unwrap(), 1);
    });
}

/// What a thread of this process has as its namespace.
fn own_namespace() -> File {
    File::open("/proc/thread-self/ns/net").unwrap()
}

#[test]
fn sockets_of_another_namespace_are_reached_by_its_descriptor() {
    in_fresh_namespace(|| {
        let here = own_namespace();
        let listener = TcpListener::bind(at("127.0.0.1:7000")).unwrap();
        let (mut ended, _server) = connect(&listener, at("127.0.0.1:7000"));
        let (local, remote) = (ended.local_addr().unwrap(), ended.peer_addr().unwrap());
        in_fresh_namespace(move || {
            assert!(
                !Sockets::open()
                    .unwrap()
                    .end(&connection(Tcp, local, remote))
                    .unwrap()
            );
            let mut there = Sockets::open_in(here.as_fd()).unwrap();
            assert!(there.end(&connection(Tcp, local, remote)).unwrap());
            assert!(
                TcpStream::connect(at("127.0.0.1:7000")).is_err(),
                "the caller stays where it is"
            );
        });
        assert_aborted(&mut ended);
    });
}

#[test]
fn the_namespace_of_a_veths_other_end_has_the_number_that_the_link_shows() {
    in_fresh_namespace(|| {
        let (tell, told) = std::sync::mpsc::channel();
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            in_fresh_namespace(move || {
                let task = std::fs::read_link("/proc/thread-self").unwrap();
                tell.send((own_namespace(), task)).unwrap();
                // Until the other side has looked.
                finished.recv().unwrap_err();
            });
        });
        let (file, task) = told.recv().unwrap();
        run(
            "ip",
            &["link", "add", "one", "type", "veth", "peer", "name", "two"],
        );
        let mut links = Links::open().unwrap();
        assert_eq!(
            links.interface_by_name("one").unwrap().unwrap().link_namespace,
            None
        );
        assert_eq!(
            links.namespace_id(file.as_fd()).unwrap(),
            None,
            "nothing leads there yet"
        );
        let thread = task.file_name().unwrap().to_str().unwrap();
        run("ip", &["link", "set", "two", "netns", thread]);
        let shown = links.interface_by_name("one").unwrap().unwrap().link_namespace;
        assert!(shown.is_some());
        assert_eq!(links.namespace_id(file.as_fd()).unwrap(), shown);
        assert_eq!(links.namespace_id(own_namespace().as_fd()).unwrap(), None);
        drop(finish);
        other.join().unwrap();
    });
}
