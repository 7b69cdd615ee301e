//! Numbers for people: three significant digits and always a unit.

/// A duration given in nanoseconds: `391 ns`, `1.25 us`, `60.0 s`.
#[must_use]
pub fn duration(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        ..999.5 => format!("{ns:.0} ns"),
        ..999_500.0 => format!("{} us", three_digits(ns / 1e3)),
        ..999_500_000.0 => format!("{} ms", three_digits(ns / 1e6)),
        _ => format!("{} s", three_digits(ns / 1e9)),
    }
}

/// A rate in things per second: `950 msg/s`, `1.25 M msg/s`.
#[must_use]
pub fn rate(per_s: f64, what: &str) -> String {
    let (value, prefix) = scaled(per_s);
    format!("{value} {prefix}{what}/s")
}

/// A number of bytes with decimal prefixes, as disks and networks count: `1.25 GB`.
#[must_use]
pub fn bytes(bytes: f64) -> String {
    let (value, prefix) = scaled(bytes);
    let prefix = if prefix == "k " {
        "k"
    } else {
        prefix.trim_end()
    };
    format!("{value} {prefix}B")
}

/// A count with thousands separators.
#[must_use]
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// How many times: `1,000`, `1.25`, `2.0e-4`; never 0 for something.
#[must_use]
pub fn factor(factor: f64) -> String {
    match factor {
        ..0.1 => format!("{factor:.1e}"),
        ..9.995 => format!("{factor:.2}"),
        _ => count(factor.round() as u64),
    }
}

/// So many of something whose plural has an s: `1 file`, `1,200 files`.
#[must_use]
pub fn many(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {what}{s}", count(number))
}

/// So many entries: `1 entry`, `1,200 entries`.
#[must_use]
pub fn entries(number: u64) -> String {
    let what = if number == 1 { "entry" } else { "entries" };
    format!("{} {what}", count(number))
}

/// A ratio of two like things: `1.25 x`.
#[must_use]
pub fn ratio(ratio: f64) -> String {
    if ratio < 0.1 {
        format!("{ratio:.3} x")
    } else {
        format!("{ratio:.2} x")
    }
}

/// `part` of `whole`, in percent; never 0 % for something nor 100 % for less than all.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    let share = part as f64 * 100.0 / whole.max(1) as f64;
    match share {
        _ if part == 0 => "0 %".into(),
        ..0.1 => "less than 0.1 %".into(),
        ..1.0 => format!("{share:.1} %"),
        99.5.. if part < whole => "more than 99 %".into(),
        _ => format!("{share:.0} %"),
    }
}

fn scaled(value: f64) -> (String, &'static str) {
    match value {
        ..999.5 => (three_digits(value), ""),
        ..999_500.0 => (three_digits(value / 1e3), "k "),
        ..999_500_000.0 => (three_digits(value / 1e6), "M "),
        _ => (three_digits(value / 1e9), "G "),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_three_digits_and_step_up_before_they_would_show_a_fourth() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (12_345, "12.3 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (999_999_999, "1.00 s"),
            (60_000_000_000, "60.0 s"),
        ];
        for (ns, expected) in cases {
            assert_eq!(duration(ns), expected, "{ns}");
        }
    }

    #[test]
    fn rates_bytes_counts_and_shares_carry_their_unit() {
        assert_eq!(rate(950.0, "msg"), "950 msg/s");
        assert_eq!(rate(62_400_000.0, "msg"), "62.4 M msg/s");
        assert_eq!(bytes(4_096.0), "4.10 kB");
        assert_eq!(bytes(1.25e9), "1.25 GB");
        assert_eq!(bytes(12.0), "12.0 B");
        assert_eq!(count(0), "0");
        assert_eq!(
            (factor(0.0002), factor(1_000.0)),
            ("2.0e-4".into(), "1,000".into())
        );
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(
            (many(1, "file"), many(1_200, "file")),
            ("1 file".into(), "1,200 files".into())
        );
        assert_eq!(
            (entries(0), entries(1)),
            ("0 entries".into(), "1 entry".into())
        );
        assert_eq!(ratio(1.254), "1.25 x");
        assert_eq!(percent(0, 7), "0 %");
        assert_eq!(percent(1, 10_000), "less than 0.1 %");
        assert_eq!(percent(9_999, 10_000), "more than 99 %");
        assert_eq!(percent(1, 4), "25 %");
        assert_eq!(percent(0, 0), "0 %");
    }
}
