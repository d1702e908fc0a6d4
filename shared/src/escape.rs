//! Text from elsewhere (manifests, Corefiles, DNS, the kernel, peers), made safe to print.
//!
//! A terminal obeys control characters, and shows text in another order, or not at all, where format characters say so
//! (CWE-150, CVE-2021-42574). Escaped is what [`str::escape_debug`] calls unprintable: C0, DEL, C1, format characters (bidi
//! controls, zero width, BOM, tags), line and paragraph separators, spaces other than U+0020, private use, unassigned.
//! Letters with combining marks stay as they are. A backslash stays as well: the result is to be read, not to be parsed.

use std::borrow::Cow;
use std::fmt::Write;

/// Part of a line: line feeds and tabs are escaped, too, so that the text cannot begin a line of its own.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    replace(text, is_printable, |char, out| {
        write!(out, "{}", char.escape_debug()).expect("a String takes everything");
    })
}

/// A text of several lines whose line feeds are meant: they stay, and everything else is as in [`line()`].
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    replace(
        text,
        |char| char == '\n' || is_printable(char),
        |char, out| {
            write!(out, "{}", char.escape_debug()).expect("a String takes everything");
        },
    )
}

/// A JSON text, as a writer of JSON left it: the same values, with `\uXXXX` for what [`line()`] escapes. Between the strings of
/// a JSON text there is nothing to escape but its own line feeds and tabs, which stay (RFC 8259, section 7).
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    let is_kept = |char| matches!(char, '\n' | '\t' | '\r') || is_printable(char);
    replace(text, is_kept, |char, out| {
        for unit in char.encode_utf16(&mut [0; 2]) {
            write!(out, "\\u{unit:04x}").expect("a String takes everything");
        }
    })
}

fn replace(text: &str, is_kept: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    let Some((first, _)) = text.char_indices().find(|(_, char)| !is_kept(*char)) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + 8);
    out.push_str(&text[..first]);
    for char in text[first..].chars() {
        if is_kept(char) {
            out.push(char);
        } else {
            escape(char, &mut out);
        }
    }
    Cow::Owned(out)
}

fn is_printable(char: char) -> bool {
    match char {
        ' '..='~' => true,
        '\0'..='\u{9f}' => false,
        _ => {
            // Behind another character, so that a combining mark is not taken for one that stands alone.
            let mut behind = [b'a', 0, 0, 0, 0];
            let length = 1 + char.encode_utf8(&mut behind[1..]).len();
            std::str::from_utf8(&behind[..length]).is_ok_and(|pair| pair.escape_debug().nth(1) == Some(char))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal obeys, or does not show as it stands.
    fn hostile() -> impl Iterator<Item = char> {
        ('\0'..='\u{1f}')
            .chain('\u{7f}'..='\u{9f}')
            .chain('\u{200b}'..='\u{200f}')
            .chain('\u{2028}'..='\u{202e}')
            .chain('\u{2060}'..='\u{206f}')
            .chain([
                '\u{ad}',
                '\u{61c}',
                '\u{180e}',
                '\u{feff}',
                '\u{fff9}',
                '\u{e0041}',
            ])
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        for char in hostile() {
            let text = format!("a{char}b");
            for escaped in [line(&text), lines(&text), json(&text)] {
                let kept = matches!(char, '\n' | '\t' | '\r') && escaped.contains(char);
                assert!(kept || !escaped.contains(char), "{char:?}: {escaped:?}");
            }
            assert!(!line(&text).contains(char), "{char:?}");
        }
        assert_eq!(line("a\u{202e}b\u{1b}[31m\n"), "a\\u{202e}b\\u{1b}[31m\\n");
        assert_eq!(lines("a\rb\n\tc"), "a\\rb\n\\tc");
    }

    #[test]
    fn what_people_write_stays() {
        for text in [
            "",
            "kube-system/coredns",
            "ü u\u{308} 日本 עברית العربية हिन्दी ไทย 👍 ❤\u{fe0f} \\ ' \" ~",
        ] {
            for same in [line(text), lines(text), json(text)] {
                assert!(matches!(same, Cow::Borrowed(same) if same == text), "{same:?}");
            }
        }
        assert_eq!(lines("one\ntwo\n"), "one\ntwo\n");
    }

    #[test]
    fn escaped_json_says_the_same() {
        let value: Vec<String> = hostile()
            .chain(['ü', '日', '"', '\\', '👍'])
            .map(String::from)
            .collect();
        for text in [
            serde_json::to_string(&value).unwrap(),
            serde_json::to_string_pretty(&value).unwrap(),
        ] {
            let escaped = json(&text);
            assert_eq!(serde_json::from_str::<Vec<String>>(&escaped).unwrap(), value);
            assert!(!hostile().any(|char| char != '\n' && escaped.contains(char)));
            assert!(
                escaped.contains("日") && escaped.contains("\\u202e") && escaped.contains("\\udb40\\udc41")
            );
        }
    }
}
