//! The keys of a server block: `[dns://]ZONE[:PORT]`.

use crate::config::model::Zone;

use super::syntax::Token;
use crate::config::corefile::position::{Error, Notes, Place};

/// Other ways to be asked, with the plugin that CoreDNS needs for them.
const OTHER_TRANSPORTS: [(&str, &str); 6] = [
    ("tls://", "tls"),
    ("quic://", "quic"),
    ("grpc://", "grpc_server"),
    ("https3://", "https3"),
    ("https://", "https"),
    ("unix://", "unix"),
];

/// A zone with its port, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) zone: Zone,
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
    if let Some((scheme, plugin)) = OTHER_TRANSPORTS
        .iter()
        .find(|(scheme, _)| token.text.starts_with(scheme))
    {
        return Err(token.error(
            format!(
                "{scheme}: node-local-dns does not compile {plugin} in: it answers DNS over UDP and TCP alone"
            ),
            "dns:// or no scheme",
        ));
    }
    let text = token.text.strip_prefix("dns://").unwrap_or(&token.text);
    let (text, port) = token.without_port(text)?;
    let zones = token.zones_of(text, notes)?;
    let key = |zone| Key {
        place: token.place.clone(),
        zone,
        port: port.unwrap_or(default_port),
    };
    Ok(zones.into_iter().map(key).collect())
}
