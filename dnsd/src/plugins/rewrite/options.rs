//! The options of an OPT record in wire format (RFC 6891 §6.1.2).

/// The value of an option.
pub(super) fn option(options: &[u8], code: u16) -> Option<Vec<u8>> {
    each(options)
        .find(|(known, _)| *known == code)
        .map(|(_, value)| value.to_vec())
}

/// The options without this one.
pub(super) fn without_option(options: &[u8], code: u16) -> Vec<u8> {
    let mut kept = Vec::with_capacity(options.len());
    for (known, value) in each(options).filter(|(known, _)| *known != code) {
        push(&mut kept, known, value);
    }
    kept
}

/// Replaces the value of an option that is present.
pub(super) fn replace_option(options: &mut Vec<u8>, code: u16, value: &[u8]) {
    if option(options, code).is_some() {
        *options = without_option(options, code);
        push(options, code, value);
    }
}

/// Appends an option.
pub(super) fn push(options: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    options.extend_from_slice(&code.to_be_bytes());
    options.extend_from_slice(&length.to_be_bytes());
    options.extend_from_slice(value);
}

/// Iterates over the options; ends at the first that cannot be read.
fn each(mut options: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = options.first_chunk::<4>()?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let (option, rest) = options.split_at_checked(4 + length)?;
        options = rest;
        Some((u16::from_be_bytes([header[0], header[1]]), &option[4..]))
    })
}
