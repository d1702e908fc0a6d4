//! The keys of a server block: `[dns://|tls://|https://|quic://]ZONE[:PORT]`.

use crate::config::model::{Scheme, Zone};

use super::syntax::Token;
use crate::config::corefile::position::{Diagnostics, Error, Position};

/// CoreDNS' schemes without listeners in dnsd.
const OTHER_SCHEMES: [&str; 3] = ["grpc://", "https3://", "unix://"];

/// A zone with its port, and its position.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) position: Position,
    pub(super) zone: Zone,
    pub(super) scheme: Scheme,
    pub(super) port: u16,
}

/// The zones of these tokens.
pub(super) fn read(tokens: &[Token], default_port: u16, diagnostics: &mut Diagnostics) -> Vec<Key> {
    let mut keys = Vec::new();
    for token in tokens {
        let read = read_one(token, default_port, diagnostics);
        keys.extend(diagnostics.take(read).unwrap_or_default());
    }
    keys
}

fn read_one(token: &Token, default_port: u16, diagnostics: &mut Diagnostics) -> Result<Vec<Key>, Error> {
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
    let zones = token.zones_of(text, diagnostics)?;
    let key = |zone| Key {
        position: token.position.clone(),
        zone,
        scheme,
        port: port.unwrap_or_else(|| scheme.default_port().unwrap_or(default_port)),
    };
    Ok(zones.into_iter().map(key).collect())
}

/// Splits off the scheme.
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
