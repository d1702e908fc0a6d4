//! The server name that the first octets of a connection ask for by TLS (RFC 6066, section 3): a ClientHello, over as many records and
//! packets as it comes in. What the name is that a client hides (Encrypted Client Hello) nobody can say.

use std::net::IpAddr;

use egret_shared::name::DnsName;

/// Of the first octets that are looked at. Real ones have some hundred octets, with keys that resist quantum computers two thousand.
const MAX_HELLO: usize = 16 << 10;
/// Records are as short as one octet; a client that sends such ones hides what it asks for.
const MAX_RECORDS: usize = 32;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// Types of extensions (IANA, "TLS ExtensionType Values"): RFC 6066; RFC 9849; the draft before it, whose number is not registered.
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
const ENCRYPTED_SERVER_NAME: u16 = 0xffce;
const HOST_NAME: u8 = 0;

/// What the first octets say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// More have to come.
    Incomplete,
    /// They ask for this name.
    Name(DnsName),
    /// They never will say.
    Unreadable(NoServerName),
}

/// Why no server name is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoServerName {
    #[error("not TLS")]
    NotTls,
    #[error("no server name")]
    Absent,
    #[error("encrypted ClientHello")]
    Encrypted,
    #[error("ClientHello is malformed")]
    Malformed,
    #[error("ClientHello is too long")]
    TooLong,
    #[error("closed before the ClientHello was whole")]
    Cut,
    #[error("no ClientHello in time")]
    Late,
    /// Rules asked for it when octets had passed.
    #[error("not read when rules asked for it")]
    NotRead,
}

/// Reads the octets that a client sent first, as far as they came.
#[must_use]
pub fn read(octets: &[u8]) -> Hello {
    let hello = handshake(octets).and_then(|hello| hello.map(|hello| server_name(&hello)).transpose());
    match hello {
        Ok(Some(name)) => Hello::Name(name),
        Ok(None) => Hello::Incomplete,
        Err(reason) => Hello::Unreadable(reason),
    }
}

/// The body of the first handshake message, out of its records (RFC 8446, sections 4 and 5.1); none while it is not whole.
fn handshake(octets: &[u8]) -> Result<Option<Vec<u8>>, NoServerName> {
    let (mut records, mut message) = (Octets(octets), Vec::new());
    for _ in 0..MAX_RECORDS {
        if records.0.first().is_some_and(|kind| *kind != HANDSHAKE)
            || records.0.get(1).is_some_and(|major| *major != 3)
        {
            return Err(NoServerName::NotTls);
        }
        let Some([_, _, _, high, low]) = records.take() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 || length > MAX_HELLO {
            return Err(NoServerName::Malformed);
        }
        let there = length.min(records.0.len());
        message.extend_from_slice(records.split(there).unwrap_or_default());
        if let Some(body) = body(&message)? {
            return Ok(Some(body.to_vec()));
        }
        if there < length {
            return Ok(None);
        }
    }
    Err(NoServerName::TooLong)
}

fn body(message: &[u8]) -> Result<Option<&[u8]>, NoServerName> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(NoServerName::NotTls);
    }
    let mut rest = Octets(message);
    let Some([_, first, second, third]) = rest.take() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([0, first, second, third]);
    match usize::try_from(length) {
        Ok(length) if length <= MAX_HELLO => Ok(rest.0.get(..length)),
        Ok(_) | Err(_) => Err(NoServerName::TooLong),
    }
}

/// RFC 8446, section 4.1.2.
fn server_name(hello: &[u8]) -> Result<DnsName, NoServerName> {
    let extensions = extensions(hello).ok_or(NoServerName::Malformed)?;
    if extensions
        .iter()
        .any(|(kind, _)| matches!(*kind, ENCRYPTED_CLIENT_HELLO | ENCRYPTED_SERVER_NAME))
    {
        return Err(NoServerName::Encrypted);
    }
    let mut names = extensions.iter().filter(|(kind, _)| *kind == SERVER_NAME);
    let name = match (names.next(), names.next()) {
        (None, _) => return Err(NoServerName::Absent),
        (Some((_, name)), None) => name,
        (Some(_), Some(_)) => return Err(NoServerName::Malformed),
    };
    host_name(name).ok_or(NoServerName::Malformed)
}

fn extensions(hello: &[u8]) -> Option<Vec<(u16, &[u8])>> {
    let mut rest = Octets(hello);
    let _version_and_random = rest.split(34)?;
    let _session = rest.vector8()?;
    let _cipher_suites = rest.vector16()?;
    let _compression = rest.vector8()?;
    let mut found = Vec::new();
    // Before TLS 1.3 a client may leave them out.
    if rest.0.is_empty() {
        return Some(found);
    }
    let mut all = Octets(rest.vector16()?);
    while !all.0.is_empty() {
        found.push((u16::from_be_bytes(all.take()?), all.vector16()?));
    }
    rest.0.is_empty().then_some(found)
}

/// The one name of the list. An address and a final dot may not be sent; what they would mean to the server is not known.
fn host_name(list: &[u8]) -> Option<DnsName> {
    let mut rest = Octets(list);
    let mut list = Octets(rest.vector16()?);
    let [HOST_NAME] = list.take()? else {
        return None;
    };
    let name = list.vector16()?;
    let is_alone = rest.0.is_empty() && list.0.is_empty();
    let text = std::str::from_utf8(name).ok().filter(|_| is_alone)?;
    let is_other = text.ends_with('.') || text.parse::<IpAddr>().is_ok();
    text.parse().ok().filter(|_| !is_other)
}

/// What is left to read.
struct Octets<'a>(&'a [u8]);

impl<'a> Octets<'a> {
    fn split(&mut self, length: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// Behind a length of one octet.
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let [length] = self.take()?;
        self.split(length.into())
    }

    /// Behind a length of two octets.
    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_be_bytes(self.take()?);
        self.split(length.into())
    }
}
