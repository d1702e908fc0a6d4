//! A connection between the daemons. Each end is woken when something comes, and not when the other one has read what it
//! was told, as an end is that waits for room all the time: on one processor those wakes stand between an answer and
//! its client.
#![allow(unsafe_code, reason = "to be heard of, a descriptor has to stay what it is")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One end of a connection.
#[derive(Debug)]
pub struct FrameStream(AsyncFd<UnixStream>);

impl FrameStream {
    /// The end of a connection that was just made.
    ///
    /// # Errors
    /// When the kernel cannot wake for it.
    pub fn new(stream: tokio::net::UnixStream) -> io::Result<Self> {
        let stream = stream.into_std()?;
        Ok(Self(register(stream, Interest::READABLE)?))
    }

    /// Waits until something comes; nothing at the end.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.get_inner().read(buffer) {
                Ok(length) => {
                    // There was no more: what comes later wakes again.
                    if length > 0 && length < buffer.len() {
                        ready.clear_ready();
                    }
                    return Ok(length);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes as much as there is room for, and waits for nothing.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn write_some(&self, octets: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.get_ref().write(octets) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return written,
            }
        }
    }

    /// Writes all of it, and waits for room where there is none.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn write_all(&self, octets: &[u8]) -> io::Result<()> {
        let mut left = &octets[self.write_some(octets)?..];
        while !left.is_empty() {
            self.room().await?;
            left = &left[self.write_some(left)?..];
        }
        Ok(())
    }

    /// Waits for room, by a descriptor of its own that is there for so long only.
    async fn room(&self) -> io::Result<()> {
        let same = register(self.0.get_ref().try_clone()?, Interest::WRITABLE)?;
        same.writable().await.map(drop)
    }
}

fn register(stream: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: a `UnixStream` has one open descriptor from its beginning to its end.
    let registered = unsafe { AsyncFd::register_with_interest(stream, interest) };
    Ok(registered?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (FrameStream, FrameStream) {
        let (one, other) = tokio::net::UnixStream::pair().unwrap();
        (FrameStream::new(one).unwrap(), FrameStream::new(other).unwrap())
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|at| at.to_le_bytes()[0]).collect()
    }

    #[tokio::test]
    async fn what_is_longer_than_the_room_arrives_whole_and_then_the_end() {
        let (ours, theirs) = pair();
        let said = pattern(3_000_000);
        let expected = said.clone();
        let heard = async {
            let (mut heard, mut buffer) = (Vec::new(), vec![0; 4096]);
            loop {
                match theirs.read(&mut buffer).await.unwrap() {
                    0 => return heard,
                    length => heard.extend_from_slice(&buffer[..length]),
                }
            }
        };
        let say = async move {
            assert!(
                ours.write_some(&said).unwrap() < said.len(),
                "there is room for everything"
            );
            let written = ours.write_some(&said).unwrap();
            assert_eq!(written, 0, "it is full");
        };
        say.await;
        let begun = heard.await;
        assert_eq!(begun, expected[..begun.len()]);

        let (ours, theirs) = pair();
        let say = async move { ours.write_all(&expected).await.map(|()| expected) };
        let hear = async {
            let (mut heard, mut buffer) = (Vec::new(), vec![0; 4096]);
            while let length @ 1.. = theirs.read(&mut buffer).await.unwrap() {
                heard.extend_from_slice(&buffer[..length]);
            }
            heard
        };
        let (said, heard) = tokio::join!(say, hear);
        assert_eq!(said.unwrap(), heard);
    }
}
