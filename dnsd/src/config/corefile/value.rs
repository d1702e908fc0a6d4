//! Values of words: numbers, durations, zones, codes, addresses, expressions.

mod reverse;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::config::model::go_duration::{self, parse_duration, write_duration};
use crate::config::model::{Expression, Zone};
use crate::dns::message::WireName;

use super::syntax::Token;
use crate::config::corefile::position::{Diagnostics, Error};

pub(crate) use crate::dns::message::{CLASSES, Codes, RCODES, TYPES};

impl Token {
    /// An integer in a range, with or without sign, as Go's `strconv.Atoi` accepts it.
    pub(super) fn number<T: TryFrom<i64>>(&self, least: i64, most: i64, what: &str) -> Result<T, Error> {
        let number = self.text.parse::<i64>().ok();
        let within = number.filter(|number| (least..=most).contains(number));
        within.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let accepted = match most {
                i64::MAX => format!("a whole number from {least}"),
                most => format!("a whole number from {least} to {most}"),
            };
            self.error(format!("{what}: {:?}", self.text), accepted)
        })
    }

    /// Whole seconds, at least `least`.
    pub(super) fn seconds(&self, least: i64, what: &str) -> Result<Duration, Error> {
        self.number(least, i64::from(u32::MAX), what)
            .map(Duration::from_secs)
    }

    /// A duration that is not negative.
    pub(super) fn span(&self, what: &str) -> Result<Duration, Error> {
        parse_duration(&self.text)
            .ok_or_else(|| self.error(format!("{what}: {:?}", self.text), go_duration::ACCEPTED))
    }

    /// A duration between two, both inclusive.
    pub(super) fn span_within(&self, what: &str, least: Duration, most: Duration) -> Result<Duration, Error> {
        let span = self.span(what)?;
        if (least..=most).contains(&span) {
            return Ok(span);
        }
        let [least, most] = [least, most].map(write_duration);
        Err(self.error(format!("{what}: {:?}", self.text), format!("{least} to {most}")))
    }

    pub(super) fn expression(&self, what: &str) -> Result<Expression, Error> {
        Expression::try_from(self.text.clone()).map_err(|error| {
            self.error(
                format!("{what}: {error}"),
                "a regular expression of 10000 octets at most",
            )
        })
    }

    /// A name.
    pub(super) fn name(&self, what: &str) -> Result<WireName, Error> {
        WireName::parse(&self.text)
            .map_err(|error| self.error(format!("{what}: {:?}: {error}", self.text), "a domain name"))
    }

    /// A zone, or several for a network whose prefix ends inside a label. A port and `dns://` are accepted and ignored.
    pub(super) fn zones(&self, diagnostics: &mut Diagnostics) -> Result<Vec<Zone>, Error> {
        let (text, _port) = self.without_port(self.text.strip_prefix("dns://").unwrap_or(&self.text))?;
        self.zones_of(text, diagnostics)
    }

    /// Splits off a number after the last colon.
    pub(super) fn without_port<'t>(&self, text: &'t str) -> Result<(&'t str, Option<u16>), Error> {
        let Some((zone, port)) = text.rsplit_once(':') else {
            return Ok((text, None));
        };
        if port.is_empty() {
            return Err(self.error(
                format!("nothing follows the colon of {text:?}"),
                "a port, or no colon",
            ));
        }
        if !port.bytes().all(|octet| octet.is_ascii_digit()) {
            return Ok((text, None));
        }
        match port.parse() {
            Ok(port) if port > 0 => Ok((zone, Some(port))),
            Ok(_) | Err(_) => Err(self.error(format!("{port:?} is not a port"), "1 to 65535")),
        }
    }

    /// The zones of a text without scheme and port.
    pub(super) fn zones_of(&self, text: &str, diagnostics: &mut Diagnostics) -> Result<Vec<Zone>, Error> {
        if let Some(network) = reverse::network(text) {
            let zones = (!reverse::is_refused(text)).then(|| reverse::zones(network));
            return zones.flatten().ok_or_else(|| {
                self.error(
                    format!("{text:?} is not a reverse zone"),
                    "a network with its prefix length that does not begin with a colon or a zero",
                )
            });
        }
        if text.is_empty() || text.contains([',', ':']) {
            return Err(self.error(
                format!("{text:?} is not a zone"),
                "a domain name or a network, with a space between two and one port behind a colon",
            ));
        }
        if text.contains('/') && !text.trim_end_matches('.').ends_with(".arpa") {
            diagnostics.warn(
                &self.position,
                format!("{text:?} is no network, and taken as a name"),
            );
        }
        WireName::parse(text)
            .map(|apex| vec![Zone::new(apex)])
            .map_err(|error| {
                self.error(
                    format!("{text:?} is not a zone: {error}"),
                    "a domain name or a network",
                )
            })
    }

    /// `ADDRESS:PORT`, `:PORT` (all addresses of the host) or `localhost:PORT`.
    pub(super) fn endpoint(&self, what: &str) -> Result<SocketAddr, Error> {
        let wrong = || {
            self.error(
                format!("{what}: {:?}", self.text),
                "ADDRESS:PORT, :PORT or localhost:PORT",
            )
        };
        if let Ok(endpoint) = self.text.parse() {
            return Ok(endpoint);
        }
        let (host, port) = self.text.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port
            .parse()
            .map_err(|_not_a_port: std::num::ParseIntError| wrong())?;
        match host {
            "" => Ok((Ipv6Addr::UNSPECIFIED, port).into()),
            "localhost" => Ok(([127, 0, 0, 1], port).into()),
            _other => Err(wrong()),
        }
    }

    pub(super) fn address(&self, what: &str) -> Result<IpAddr, Error> {
        self.text
            .parse()
            .map_err(|_not_an_address: std::net::AddrParseError| {
                self.error(format!("{what}: {:?}", self.text), "an IPv4 or IPv6 address")
            })
    }

    /// A code by its name in a table.
    pub(super) fn code<T: Copy + 'static>(&self, what: &str, codes: &Codes<T>) -> Result<T, Error> {
        codes
            .number(&self.text)
            .ok_or_else(|| self.error(format!("{what}: {:?}", self.text), codes.accepted))
    }
}

/// The zones of these tokens.
pub(super) fn zones(tokens: &[Token], diagnostics: &mut Diagnostics) -> Result<Vec<Zone>, Error> {
    let mut zones = Vec::new();
    for token in tokens {
        zones.extend(token.zones(diagnostics)?);
    }
    Ok(zones)
}
