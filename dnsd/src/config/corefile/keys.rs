//! The keys of a server block: `[dns://|tls://|https://|quic://]ZONE[:PORT]`.

use crate::config::model::{Scheme, Zone};

use super::syntax::Token;
use crate::config::corefile::position::{Error, Notes, Place};

/// Schemes of CoreDNS that dnsd has no sockets for.
const OTHER_SCHEMES: [&str; 3] = ["grpc://", "https3://", "unix://"];

/// A zone with its port, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) zone: Zone,
    pub(super) scheme: Scheme,
    pub(super) port: u16,
}

/// The zones of these keys.
pub(super) fn read(tokens: &[Token], default_port: u16, notes: &mut Notes) -> Vec<Key> {
    let mut keys = Vec::new();
    for token in tokens {
        let read = read_one(token, default_port, notes);
        keys.extend(notes.take(read).unwrap_or_default());
    }
    keys
}

fn read_one(token: &Token, default_port: u16, notes: &mut Notes) -> Result<Vec<Key>, Error> {
    if let Some(scheme) = OTHER_SCHEMES
        .iter()
        .find(|scheme| token.text.starts_with(*scheme))
    {
        return Err(token.error(
            format!("{scheme}: dnsd answers over UDP, TCP, TLS, HTTPS and QUIC alone"),
            "dns://, tls://, https:// or quic://, or no scheme",
        ));
    }
    let (scheme, text) = scheme(&token.text);
    let (text, port) = token.without_port(text)?;
    let zones = token.zones_of(text, notes)?;
    let key = |zone| Key {
        place: token.place.clone(),
        zone,
        scheme,
        port: port.unwrap_or_else(|| scheme.default_port().unwrap_or(default_port)),
    };
    Ok(zones.into_iter().map(key).collect())
}

/// The scheme, and what follows it.
fn scheme(key: &str) -> (Scheme, &str) {
    let split = |scheme: Scheme| {
        let rest = key.strip_prefix(scheme.name())?.strip_prefix("://")?;
        Some((scheme, rest))
    };
    Scheme::ALL
        .into_iter()
        .find_map(split)
        .unwrap_or((Scheme::Dns, key))
}
