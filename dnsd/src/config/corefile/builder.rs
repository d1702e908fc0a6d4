//! A plan while it is read: blocks, and what they say about the whole.

use crate::config::model::{Block as PlanBlock, Health, Plan, Reload, Scheme};

use super::directive::{self, Draft};
use super::keys::{self, Key};
use super::syntax::{Block, Directive};
use crate::config::corefile::position::{Error, Notes, Place};

/// What was read so far.
#[derive(Default)]
pub(super) struct Drafts {
    blocks: Vec<PlanBlock>,
    served: Vec<Served>,
    reload: Option<Reload>,
    health: Vec<Health>,
    prometheus: Vec<std::net::SocketAddr>,
}

/// A zone that is served, for the search of doubles.
struct Served {
    key: Key,
    block: PlanBlock,
}

impl Drafts {
    pub(super) fn add(&mut self, block: &Block, default_port: u16, notes: &mut Notes) {
        let keys = keys::read(&block.keys, default_port, notes);
        let Some(first) = keys.first() else {
            return;
        };
        let mut draft = Draft::new(PlanBlock {
            origin: first.place.origin(),
            scheme: first.scheme,
            port: first.port,
            ..PlanBlock::default()
        });
        for directive in &block.directives {
            let read = directive::read(directive, &mut draft, notes);
            notes.take(read);
        }
        let is_tls = |directive: &Directive| directive.head.name.text == "tls";
        if !block.directives.iter().any(is_tls) || draft.block.tls.is_some() {
            check_tls(&keys, &draft.block, notes);
        }
        self.note_doubles(&keys, &draft.block, notes);
        self.reload = self.reload_of(&draft, first, notes);
        self.health.extend(draft.health);
        if let Some(address) = draft.prometheus
            && !self.prometheus.contains(&address)
        {
            self.prometheus.push(address);
        }
        self.blocks.extend(split(draft.block, &keys, notes));
    }

    pub(super) fn finish(self, notes: &mut Notes) -> Option<Plan> {
        if self.blocks.is_empty() || !notes.errors.is_empty() {
            return None;
        }
        Some(Plan {
            blocks: self.blocks,
            reload: self.reload,
            health: self.health,
            prometheus: self.prometheus,
        })
    }

    /// The file is one, so the last block that says how often it is looked at says it for all.
    fn reload_of(&self, draft: &Draft, key: &Key, notes: &mut Notes) -> Option<Reload> {
        let said = draft.reload.or(self.reload);
        if self.reload.is_some() && said != self.reload {
            let text = "this block's reload counts, not that of a block above: there is one file";
            notes.warn(&key.place, text);
        }
        said
    }

    /// The same zone on the same port and address twice; a block without `bind` is on every address.
    fn note_doubles(&mut self, keys: &[Key], block: &PlanBlock, notes: &mut Notes) {
        for key in keys {
            let other = self.served.iter().find(|served| served.overlaps(key, block));
            if let Some(other) = other {
                notes.errors.push(double(key, &other.key.place));
            }
            let other = self
                .served
                .iter()
                .find(|served| served.contradicts_tls(key, block));
            if let Some(other) = other {
                notes.errors.push(other_certificate(key, &other.key.place));
            }
            self.served.push(Served {
                key: key.clone(),
                block: block.clone(),
            });
        }
    }
}

impl Served {
    fn overlaps(&self, key: &Key, block: &PlanBlock) -> bool {
        self.key.zone == key.zone && self.shares_socket(key, block)
    }

    fn shares_socket(&self, key: &Key, block: &PlanBlock) -> bool {
        (self.key.scheme, self.key.port) == (key.scheme, key.port) && self.block.shares_address(block)
    }

    fn contradicts_tls(&self, key: &Key, block: &PlanBlock) -> bool {
        let tls = self.block.tls.as_ref().zip(block.tls.as_ref());
        key.scheme.is_encrypted()
            && tls.is_some_and(|(own, other)| !own.is_like(other))
            && self.shares_socket(key, block)
    }
}

/// A key that is encrypted needs a certificate, and a certificate a key that is. CoreDNS would serve the one without
/// encryption, and take no notice of the other.
fn check_tls(keys: &[Key], block: &PlanBlock, notes: &mut Notes) {
    let encrypted = keys.iter().find(|key| key.scheme.is_encrypted());
    match (encrypted, &block.tls) {
        (Some(key), None) => notes.errors.push(Error {
            place: key.place.clone(),
            wrong: format!("{}://: this block has no certificate", key.scheme.name()),
            accepted: "tls CERT KEY [CA] in the block".to_owned(),
        }),
        (None, Some(tls)) => {
            let text = format!(
                "tls at {} is not used: no key of this block begins with tls://, https:// or quic:// (for upstreams \
                 forward has an option tls)",
                tls.origin
            );
            notes.warn(&keys[0].place, text);
        }
        (Some(_), Some(_)) | (None, None) => {}
    }
}

fn other_certificate(key: &Key, other: &Place) -> Error {
    Error {
        place: key.place.clone(),
        wrong: format!(
            "{}://: the block at {other} has another tls, on the same port {}",
            key.scheme.name(),
            key.port
        ),
        accepted: "the same tls in all blocks of a port and an address".to_owned(),
    }
}

fn double(key: &Key, other: &Place) -> Error {
    Error {
        place: key.place.clone(),
        wrong: format!(
            "the zone {} is served on port {} by the block at {other}, too",
            key.zone, key.port
        ),
        accepted: "each zone once for a port and an address".to_owned(),
    }
}

/// A block is asked in one way on one port; keys with several make several.
fn split(block: PlanBlock, keys: &[Key], notes: &mut Notes) -> Vec<PlanBlock> {
    let mut sockets: Vec<(Scheme, u16)> = Vec::new();
    for key in keys {
        if !sockets.contains(&(key.scheme, key.port)) {
            if !sockets.is_empty() {
                notes.warn(&key.place, "another port: it has a cache and limits of its own");
            }
            sockets.push((key.scheme, key.port));
        }
    }
    let of_socket = |(scheme, port): (Scheme, u16)| PlanBlock {
        scheme,
        port,
        tls: block.tls.clone().filter(|_| scheme.is_encrypted()),
        zones: keys
            .iter()
            .filter(|key| (key.scheme, key.port) == (scheme, port))
            .map(|key| key.zone)
            .collect(),
        ..block.clone()
    };
    sockets.into_iter().map(of_socket).collect()
}
