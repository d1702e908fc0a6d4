//! The file of weights: a name on a line, then lines with an address and its weight.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::dns::message::{InvalidText, WireName};

/// The weight of each address of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(HashMap<(Box<[u8]>, IpAddr), u8>);

/// Why a file of weights is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct InvalidWeights {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what is accepted.
    pub reason: Reason,
}

/// The error of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// An address where a name is expected, or without weight.
    #[error("{0:?} is no name; an address stands before its weight")]
    NoName(String),
    /// Not a name.
    #[error("{0:?} is no name: {1}")]
    Name(String, InvalidText),
    /// Not an address.
    #[error("{0:?} is no address")]
    Address(String),
    /// Not a weight.
    #[error("{0:?} is no weight; 1 to 255 are accepted")]
    Weight(String),
    /// An address before the first name.
    #[error("an address stands below its name, and no name was said yet")]
    Nameless,
    /// Too many fields.
    #[error("{0:?} is neither a name nor an address and its weight")]
    Words(String),
}

impl Weights {
    /// Parses the file.
    ///
    /// # Errors
    /// The first invalid line.
    pub fn parse(text: &str) -> Result<Self, InvalidWeights> {
        let (mut weights, mut name) = (HashMap::new(), None);
        for (number, line) in text.lines().enumerate() {
            let wrong = |reason| InvalidWeights {
                line: number + 1,
                reason,
            };
            let line = line.trim();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                [word] => name = Some(parse_name(word).map_err(wrong)?),
                [address, weight] => {
                    let owner: WireName = name.ok_or_else(|| wrong(Reason::Nameless))?;
                    let (address, weight) = parse_weight(address, weight).map_err(wrong)?;
                    // The first weight of an address counts.
                    weights
                        .entry((Box::from(owner.as_octets()), address))
                        .or_insert(weight);
                }
                _more => return Err(wrong(Reason::Words(line.to_owned()))),
            }
        }
        Ok(Self(weights))
    }

    /// The weight of an address of a name; the default is 1.
    #[must_use]
    pub fn of(&self, owner: &WireName, address: Option<IpAddr>) -> usize {
        let key = |address: IpAddr| (Box::from(owner.as_octets()), address.to_canonical());
        address
            .and_then(|address| self.0.get(&key(address)))
            .map_or(1, |weight| usize::from(*weight))
    }
}

fn parse_name(word: &str) -> Result<WireName, Reason> {
    if word.parse::<IpAddr>().is_ok() {
        return Err(Reason::NoName(word.to_owned()));
    }
    WireName::parse(word).map_err(|error| Reason::Name(word.to_owned(), error))
}

fn parse_weight(address: &str, weight: &str) -> Result<(IpAddr, u8), Reason> {
    let parsed: IpAddr = address
        .parse()
        .map_err(|_error| Reason::Address(address.to_owned()))?;
    let weight = weight
        .parse()
        .ok()
        .filter(|weight| *weight > 0)
        .ok_or_else(|| Reason::Weight(weight.to_owned()))?;
    Ok((parsed.to_canonical(), weight))
}
