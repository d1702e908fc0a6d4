//! Names of classes, types and response codes (IANA, "Domain Name System (DNS) Parameters") that CoreDNS knows.

use std::borrow::Cow;

/// A table of names and their numbers.
#[derive(Debug)]
pub(crate) struct Codes<T: 'static> {
    names: &'static [(&'static str, T)],
    /// The accepted names, for errors.
    pub(crate) accepted: &'static str,
}

impl<T: Copy> Codes<T> {
    /// The number of a name, in upper or lower case.
    pub(crate) fn number(&self, text: &str) -> Option<T> {
        self.names
            .iter()
            .find_map(|(name, number)| name.eq_ignore_ascii_case(text).then_some(*number))
    }
}

impl<T: Copy + PartialEq> Codes<T> {
    /// The name of a number; of two names the first.
    pub(crate) fn name(&self, number: T) -> Option<&'static str> {
        self.names
            .iter()
            .find_map(|(name, known)| (*known == number).then_some(*name))
    }
}

/// Classes.
pub(crate) const CLASSES: Codes<u16> = Codes {
    names: &[
        ("IN", 1),
        ("CS", 2),
        ("CH", 3),
        ("HS", 4),
        ("NONE", 254),
        ("ANY", 255),
    ],
    accepted: "IN, CS, CH, HS, NONE or ANY",
};

/// Response codes.
pub(crate) const RCODES: Codes<u8> = Codes {
    names: &[
        ("NOERROR", 0),
        ("FORMERR", 1),
        ("SERVFAIL", 2),
        ("NXDOMAIN", 3),
        ("NOTIMP", 4),
        ("NOTIMPL", 4),
        ("REFUSED", 5),
        ("YXDOMAIN", 6),
        ("YXRRSET", 7),
        ("NXRRSET", 8),
        ("NOTAUTH", 9),
        ("NOTZONE", 10),
        ("DSOTYPENI", 11),
        ("BADSIG", 16),
        ("BADVERS", 16),
        ("BADKEY", 17),
        ("BADTIME", 18),
        ("BADMODE", 19),
        ("BADNAME", 20),
        ("BADALG", 21),
        ("BADTRUNC", 22),
        ("BADCOOKIE", 23),
    ],
    accepted: "NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED or another response code's name",
};

/// A response code as CoreDNS' metrics and logs name it; the number if it has no name there.
pub(crate) fn rcode_label(code: u8) -> Cow<'static, str> {
    match (code, RCODES.name(code)) {
        (0..=10, Some(name)) => name.into(),
        (16, _) => "BADVERS".into(),
        (other, _) => other.to_string().into(),
    }
}

/// Types of records and questions.
pub(crate) const TYPES: Codes<u16> = Codes {
    names: &[
        ("A", 1),
        ("NS", 2),
        ("MD", 3),
        ("MF", 4),
        ("CNAME", 5),
        ("SOA", 6),
        ("MB", 7),
        ("MG", 8),
        ("MR", 9),
        ("NULL", 10),
        ("PTR", 12),
        ("HINFO", 13),
        ("MINFO", 14),
        ("MX", 15),
        ("TXT", 16),
        ("RP", 17),
        ("AFSDB", 18),
        ("X25", 19),
        ("ISDN", 20),
        ("RT", 21),
        ("NSAP-PTR", 23),
        ("SIG", 24),
        ("KEY", 25),
        ("PX", 26),
        ("GPOS", 27),
        ("AAAA", 28),
        ("LOC", 29),
        ("NXT", 30),
        ("EID", 31),
        ("NIMLOC", 32),
        ("SRV", 33),
        ("ATMA", 34),
        ("NAPTR", 35),
        ("KX", 36),
        ("CERT", 37),
        ("DNAME", 39),
        ("OPT", 41),
        ("APL", 42),
        ("DS", 43),
        ("SSHFP", 44),
        ("IPSECKEY", 45),
        ("RRSIG", 46),
        ("NSEC", 47),
        ("DNSKEY", 48),
        ("DHCID", 49),
        ("NSEC3", 50),
        ("NSEC3PARAM", 51),
        ("TLSA", 52),
        ("SMIMEA", 53),
        ("HIP", 55),
        ("NINFO", 56),
        ("RKEY", 57),
        ("TALINK", 58),
        ("CDS", 59),
        ("CDNSKEY", 60),
        ("OPENPGPKEY", 61),
        ("CSYNC", 62),
        ("ZONEMD", 63),
        ("SVCB", 64),
        ("HTTPS", 65),
        ("SPF", 99),
        ("UINFO", 100),
        ("UID", 101),
        ("GID", 102),
        ("UNSPEC", 103),
        ("NID", 104),
        ("L32", 105),
        ("L64", 106),
        ("LP", 107),
        ("EUI48", 108),
        ("EUI64", 109),
        ("NXNAME", 128),
        ("TKEY", 249),
        ("TSIG", 250),
        ("IXFR", 251),
        ("AXFR", 252),
        ("MAILB", 253),
        ("MAILA", 254),
        ("ANY", 255),
        ("URI", 256),
        ("CAA", 257),
        ("AVC", 258),
        ("AMTRELAY", 260),
        ("RESINFO", 261),
        ("TA", 32_768),
        ("DLV", 32_769),
    ],
    accepted: "the name of a type, as A, AAAA, HTTPS or ANY",
};
