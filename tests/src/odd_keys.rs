//! Keys that somebody on the way may read as something else.

/// Each begins its last component with the size of the object, as the simulator has it.
pub const ODD_KEYS: [&str; 23] = [
    "plain/70000-x",
    "plain/0-empty",
    "plain/1-byte",
    "a space/64-x",
    "plus+plus/64-x",
    "percent%/64-x",
    "%2B%2b%20/64-x",
    "%41%2f/64-x",
    "grüße/日本語/64-x",
    "e\u{301} is not é/64-x",
    "🦀/64-🦀",
    "double//slash///64-x",
    "/leading/64-x",
    "//64-x",
    "./64-x",
    "../64-x",
    "a/./b/../64-x",
    "query?a=b&c=d/64-x",
    "hash#/64-x",
    "quotes'\"`<>&/64-x",
    "new\nline\ttab/64-x",
    "semi;colon:=,@$!*()~|^{}[]\\/64-x",
    " /64- ",
];
