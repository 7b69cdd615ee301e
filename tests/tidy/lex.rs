//! Just enough of Rust's lexical structure to tell code from comments and literals.

/// The text with the inside of comments and of string and character literals replaced by spaces;
/// line breaks stay, so lines keep their numbers.
pub(crate) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_or_comment_end(&chars, at);
        if end > at {
            out.extend(
                chars[at..end]
                    .iter()
                    .map(|c| if *c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Where the comment or literal that begins at `at` ends; `at` itself if none begins there.
fn literal_or_comment_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match (chars[at], next) {
        ('/', Some('/')) => find(chars, at, |c| c == '\n'),
        ('/', Some('*')) => block_comment_end(chars, at),
        ('"', _) => string_end(chars, at + 1),
        ('r', Some('"' | '#')) if !follows_word(chars, at) => raw_string_end(chars, at),
        ('\'', Some('\\')) => find(chars, at + 3, |c| c == '\'') + 1,
        ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    (from..chars.len())
        .find(|&i| wanted(chars[i]))
        .unwrap_or(chars.len())
}

/// True after `for` in `for"`, false after the `b` of `br"`.
fn follows_word(chars: &[char], at: usize) -> bool {
    let word = |i: usize| chars[i].is_alphanumeric() || chars[i] == '_';
    let prefix = at > 0 && matches!(chars[at - 1], 'b' | 'c') && (at == 1 || !word(at - 2));
    at > 0 && word(at - 1) && !prefix
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// A raw string ends at a quote with as many hashes as it began with. `r#name` is not one.
fn raw_string_end(chars: &[char], at: usize) -> usize {
    let open = find(chars, at + 1, |c| c != '#');
    if chars.get(open) != Some(&'"') {
        return at;
    }
    let hashes = open - at - 1;
    let closes = |i: usize| {
        chars[i] == '"'
            && chars[i + 1..].len() >= hashes
            && chars[i + 1..i + 1 + hashes].iter().all(|c| *c == '#')
    };
    (open + 1..chars.len())
        .find(|&i| closes(i))
        .map_or(chars.len(), |i| i + 1 + hashes)
}

/// The identifiers and keywords of `code`, each with the offset behind it.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (&str, usize)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + code[at..].find(is_word)?;
        at = code[start..]
            .find(|c| !is_word(c))
            .map_or(code.len(), |n| start + n);
        Some((&code[start..at], at))
    })
}

#[test]
fn comments_and_literals_are_blanked_and_code_is_kept() {
    let table = [
        ("a // unsafe\nb", "a          \nb"),
        ("a /* x /* y */ z */ b", "a                   b"),
        (r#"f("todo!(\" \\")+g"#, "f(             )+g"),
        (
            r##"r#"un"safe"# + br"x" + r#fn"##,
            "             + b     + r#fn",
        ),
        (
            "'\\'' 'x' &'a str '\\u{1F600}'",
            "         &'a str            ",
        ),
        ("\"two\nlines\" c", "    \n       c"),
        ("b'\"' d", "b    d"),
    ];
    for (text, expected) in table {
        assert_eq!(code_only(text), expected, "{text}");
    }
}

#[test]
fn words_come_with_the_place_behind_them() {
    let found: Vec<_> = words("unsafe{f_1(a)}").collect();
    assert_eq!(found, [("unsafe", 6), ("f_1", 10), ("a", 12)]);
}
