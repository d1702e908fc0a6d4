//! What is on the other side of the generator and of dnsd: the floor (an echo, no work at all) and an upstream that has
//! its answer ready, so that it is never what is waited for.

use std::net::UdpSocket;
use std::sync::mpsc;
use std::thread;

use nix::unistd::gettid;

use crate::meter::{self, Meter};

/// Sends everything back, on the servers' CPU. The thread ends with the process.
pub(crate) fn echo(socket: UdpSocket) -> anyhow::Result<Meter> {
    serve(socket, meter::SERVERS, |_, length| length)
}

/// Answers every question with one address, made of the number in the name, for an hour; on the generator's CPU.
pub(crate) fn upstream(socket: UdpSocket) -> anyhow::Result<Meter> {
    serve(socket, meter::GENERATOR, answer)
}

/// Turns the message in the buffer into its response; says how long that is. 0 means none.
type Respond = fn(&mut [u8], usize) -> usize;

fn serve(socket: UdpSocket, cpu: usize, respond: Respond) -> anyhow::Result<Meter> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let begun = meter::pin_this_thread(cpu).map(|()| Meter::Thread(gettid()));
        let goes_on = begun.is_ok();
        drop(tell.send(begun));
        let mut octets = [0; 1500];
        while goes_on && let Ok((length, asker)) = socket.recv_from(&mut octets) {
            let length = respond(&mut octets, length);
            if length > 0
                && let Err(error) = socket.send_to(&octets[..length], asker)
            {
                eprintln!("a responder cannot send to {asker}: {error}");
            }
        }
    });
    told.recv()?
}

fn answer(octets: &mut [u8], length: usize) -> usize {
    let Some((end, number)) = read_question(&octets[..length]) else {
        return 0;
    };
    // QR, RD, RA, NOERROR; one question, one answer, and no OPT (RFC 6891 section 7).
    octets[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
    // The name of the question, A, IN, an hour, four octets of 198.18.0.0/15 (RFC 2544).
    octets[end..end + 12].copy_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4]);
    let [_, high, middle, low] = number.to_be_bytes();
    octets[end + 12..end + 16].copy_from_slice(&[198, 18 + high % 2, middle, low]);
    end + 16
}

/// Where the question ends, and the number in its first label.
fn read_question(octets: &[u8]) -> Option<(usize, u32)> {
    let name = octets.get(12..)?;
    let first = name.get(1..1 + usize::from(*name.first()?))?;
    let digits = first.iter().filter(|octet| octet.is_ascii_digit());
    let number = digits.fold(0u32, |number, digit| {
        number.wrapping_mul(10).wrapping_add(u32::from(digit - b'0'))
    });
    let mut end = 0;
    while *name.get(end)? > 0 {
        end += 1 + usize::from(name[end]);
    }
    Some((12 + end + 5, number))
}
