//! Writes server blocks, one option a line.

use std::fmt::Write;

use super::{Block, Line, Token};

/// The text of these blocks.
pub(in super::super) fn write(blocks: &[Block]) -> String {
    let mut text = String::new();
    for block in blocks {
        text.push_str(&words(&block.keys));
        text.push_str(" {\n");
        for directive in &block.directives {
            push_line(&mut text, "    ", &directive.head);
            if let Some(body) = &directive.body {
                text.push_str(" {\n");
                for line in body {
                    push_line(&mut text, "        ", line);
                    text.push('\n');
                }
                text.push_str("    }");
            }
            text.push('\n');
        }
        text.push_str("}\n");
    }
    // The reader drops a leading byte order mark, and a name may begin with one.
    if text.starts_with('\u{feff}') {
        text.insert(0, '\n');
    }
    text
}

fn push_line(text: &mut String, indent: &str, line: &Line) {
    text.push_str(indent);
    text.push_str(&quoted(&line.name.text));
    if !line.args.is_empty() {
        text.push(' ');
        text.push_str(&words(&line.args));
    }
}

fn words(tokens: &[Token]) -> String {
    let words: Vec<String> = tokens.iter().map(|token| quoted(&token.text)).collect();
    words.join(" ")
}

/// Quotes a word that would be read differently without quotes. A `\` before a quote cannot be written; such a word has
/// no blanks, so it needs no quotes.
fn quoted(text: &str) -> String {
    let bare = !text.is_empty()
        && !text.starts_with('"')
        && text != "\\"
        && !text.contains(|character: char| character == '#' || character.is_whitespace());
    if bare {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            other => {
                write!(quoted, "{other}").expect("writing to a String does not fail");
            }
        }
    }
    quoted.push('"');
    quoted
}
