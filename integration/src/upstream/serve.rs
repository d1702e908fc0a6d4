//! The two sockets of the server.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use hickory_proto::op::{Message, Query};
use socket2::Type;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
};

use super::{PORT, ReceivedQuery, Spoof, Zone, answer};
use crate::{
    WorldError,
    datagram::{Datagram, WildcardUdp, unmapped},
    lookup::Transport,
    upstream_network::{Servers, UpstreamNetwork},
};

/// Who answers when an answer shall come from another server.
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);
const STRANGER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x66);

pub(super) fn start(
    zone: &Arc<Zone>,
    upstream_network: &UpstreamNetwork,
    servers: &Servers,
) -> Result<(), WorldError> {
    let failed = |source| WorldError::Serve { port: PORT, source };
    let sockets = upstream_network.sockets();
    let udp = sockets.listener(Type::DGRAM, PORT).map_err(failed)?;
    // The forger's other port.
    let other = sockets.listener(Type::DGRAM, 0).map_err(failed)?;
    let tcp = sockets.listener(Type::STREAM, PORT).map_err(failed)?;
    let (udp, other, tcp) = servers
        .enter(|| {
            io::Result::Ok((
                WildcardUdp::new(udp)?,
                WildcardUdp::new(other)?,
                TcpListener::from_std(tcp.into())?,
            ))
        })
        .map_err(failed)?;
    servers.spawn(serve_udp(Arc::clone(zone), Arc::new(udp), Arc::new(other)));
    servers.spawn(serve_tcp(Arc::clone(zone), tcp));
    Ok(())
}

async fn serve_udp(zone: Arc<Zone>, socket: Arc<WildcardUdp>, other: Arc<WildcardUdp>) {
    loop {
        match socket.receive().await {
            Ok(datagram) => {
                let (zone, socket, other) = (Arc::clone(&zone), Arc::clone(&socket), Arc::clone(&other));
                tokio::spawn(async move {
                    if let Err(error) = answer_datagram(&zone, &socket, &other, &datagram).await {
                        eprintln!("upstream: answer to {}: {error}", datagram.from);
                    }
                });
            }
            Err(error) => eprintln!("upstream: {error}"),
        }
    }
}

async fn answer_datagram(
    zone: &Zone,
    socket: &WildcardUdp,
    other: &WildcardUdp,
    datagram: &Datagram,
) -> io::Result<()> {
    let Some((query, question)) = read(&datagram.bytes) else {
        return Ok(());
    };
    note(
        zone,
        &query,
        &question,
        Transport::Udp,
        datagram.from,
        datagram.asked,
    );
    let spoofs = zone
        .find(&question.name.to_ascii())
        .map(|records| records.spoofs)
        .unwrap_or_default();
    for spoof in spoofs {
        send_spoof(socket, other, datagram, &query, &question, spoof).await?;
    }
    match answer_in_time(zone, &query, &question, Transport::Udp).await {
        Some(bytes) => socket.send(&bytes, datagram.asked, datagram.from).await,
        None => Ok(()),
    }
}

async fn send_spoof(
    socket: &WildcardUdp,
    other: &WildcardUdp,
    Datagram { from, asked, .. }: &Datagram,
    query: &Message,
    question: &Query,
    spoof: Spoof,
) -> io::Result<()> {
    let mut question = question.clone();
    if let Spoof::WrongQuestion(_) = spoof {
        question.name = question.name.prepend_label("not").map_err(io::Error::other)?;
    }
    let (Spoof::WrongId(address)
    | Spoof::WrongPort(address)
    | Spoof::WrongQuestion(address)
    | Spoof::WrongServer(address)) = spoof;
    let mut message = answer::false_answer(query, &question, address);
    if let Spoof::WrongId(_) = spoof {
        message.metadata.id ^= 1;
    }
    let bytes = message.to_vec().map_err(io::Error::other)?;
    match spoof {
        Spoof::WrongId(_) | Spoof::WrongQuestion(_) => socket.send(&bytes, *asked, *from).await,
        Spoof::WrongPort(_) => other.send(&bytes, *asked, *from).await,
        Spoof::WrongServer(_) => socket.send(&bytes, stranger_to(*asked), *from).await,
    }
}

fn stranger_to(asked: IpAddr) -> IpAddr {
    match asked {
        IpAddr::V4(_) => STRANGER.into(),
        IpAddr::V6(_) => STRANGER_V6.into(),
    }
}

async fn serve_tcp(zone: Arc<Zone>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let zone = Arc::clone(&zone);
                tokio::spawn(async move {
                    // A client that goes away is the usual end.
                    drop(serve_stream(&zone, stream, unmapped(from)).await);
                });
            }
            Err(error) => eprintln!("upstream: {error}"),
        }
    }
}

/// Each query of a connection is answered when its own delay is over (RFC 7766 section 6.2.1.1).
async fn serve_stream(zone: &Arc<Zone>, stream: TcpStream, from: SocketAddr) -> io::Result<()> {
    let asked = unmapped(stream.local_addr()?).ip();
    let (mut reader, writer) = stream.into_split();
    let (answers, ready) = mpsc::channel(64);
    tokio::spawn(write_answers(writer, ready));
    loop {
        let bytes = read_framed(&mut reader).await?;
        let Some((query, question)) = read(&bytes) else {
            continue;
        };
        note(zone, &query, &question, Transport::Tcp, from, asked);
        let (zone, answers) = (Arc::clone(zone), answers.clone());
        tokio::spawn(async move {
            if let Some(bytes) = answer_in_time(&zone, &query, &question, Transport::Tcp).await {
                // The writer is gone with its client.
                drop(answers.send(bytes).await);
            }
        });
    }
}

async fn read_framed(reader: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(reader.read_u16().await?)];
    reader.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn write_answers(mut writer: OwnedWriteHalf, mut ready: mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = ready.recv().await {
        let length = u16::try_from(bytes.len()).expect("an answer over TCP is at most 65535 bytes");
        let framed = [&length.to_be_bytes()[..], &bytes].concat();
        if writer.write_all(&framed).await.is_err() {
            return;
        }
    }
}

async fn answer_in_time(
    zone: &Zone,
    query: &Message,
    question: &Query,
    transport: Transport,
) -> Option<Vec<u8>> {
    let records = zone.find_when_due(&question.name.to_ascii()).await;
    answer::answer(zone, query, question, records, transport)
}

fn note(
    zone: &Zone,
    query: &Message,
    question: &Query,
    transport: Transport,
    from: SocketAddr,
    server: IpAddr,
) {
    zone.note(ReceivedQuery {
        name: question.name.to_ascii(),
        record_type: question.query_type,
        transport,
        from,
        server,
        id: query.metadata.id,
        at: Instant::now(),
    });
}

fn read(bytes: &[u8]) -> Option<(Message, Query)> {
    let query = Message::from_vec(bytes)
        .map_err(|error| eprintln!("upstream: unreadable query: {error}"))
        .ok()?;
    let question = query.queries.first()?.clone();
    Some((query, question))
}
