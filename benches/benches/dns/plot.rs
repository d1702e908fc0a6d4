//! Figures as a picture: a panel for each situation, a bar for each server, as long as its CPU time a query. Plain SVG.

use std::fmt::Write as _;

use crate::report::{Round, Situation, count};

const WIDTH: f64 = 420.0;
/// Where bars begin, behind the names.
const NAMES: f64 = 90.0;
/// Behind the longest bar, for its figure.
const FIGURES: f64 = 60.0;
const LINE: f64 = 20.0;
const OURS: &str = "#b03a2e";
const OTHERS: &str = "#7fb3d5";
/// Panels beside each other.
const BESIDE: usize = 2;

/// One panel for each; each has its own scale, which its figures say.
pub(crate) fn svg(situations: &[Situation]) -> String {
    let tallest = situations.iter().map(|situation| situation.servers().len());
    let height = LINE * (count(tallest.max().unwrap_or(0)) + 3.0);
    let rows = situations.len().div_ceil(BESIDE);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        WIDTH * count(BESIDE),
        height * count(rows)
    );
    for (number, situation) in situations.iter().enumerate() {
        let (left, top) = (WIDTH * count(number % BESIDE), height * count(number / BESIDE));
        draw(&mut text, situation, left, top);
    }
    text + "</svg>\n"
}

fn draw(text: &mut String, situation: &Situation, left: f64, top: f64) {
    let bars = situation.servers().iter();
    let bars: Vec<_> = bars
        .map(|server| (*server, situation.median(server, Round::cpu_micros)))
        .collect();
    let longest = bars.iter().map(|(_, figure)| *figure).fold(1.0, f64::max);
    let (title, middle) = (top + LINE, left + WIDTH / 2.0);
    put(
        text,
        format_args!(
            "<text x=\"{middle}\" y=\"{title}\" text-anchor=\"middle\">{}: CPU µs a query</text>",
            situation.name
        ),
    );
    for (number, (server, figure)) in bars.iter().enumerate() {
        let (from, y) = (left + NAMES, title + LINE * (count(number) + 0.5));
        let length = figure / longest * (WIDTH - NAMES - FIGURES);
        let colour = if server.starts_with("dnsd,") || *server == "dnsd" {
            OURS
        } else {
            OTHERS
        };
        put(
            text,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{server}</text>\
                 <rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{figure:.1}</text>",
                from - 6.0,
                y + LINE * 0.6,
                LINE * 0.8,
                from + length + 4.0,
                y + LINE * 0.6,
            ),
        );
    }
}

fn put(text: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(text, "{element}").expect("a String takes all text");
}
