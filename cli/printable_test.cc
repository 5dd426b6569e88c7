#include "cli/printable.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "cli/output.h"
#include "cli/table.h"

namespace rekindle::cli {
namespace {

TEST(PrintableTest, OrdersToTheTerminalAreNone) {
  EXPECT_EQ(Printable("\x1b]0;title\a\r\b\x7f"), "?]0;title????");
  EXPECT_EQ(Printable("\xc2\x80 \xc2\x9b"
                      "31m \xc2\x9f"),
            "? ?31m ?");
  EXPECT_EQ(Printable(absl::string_view("a\0b", 3)), "a?b");
}

TEST(PrintableTest, TextStays) {
  const std::string text = "two\n\tlines, \xc2\xa0 caf\xc3\xa9, \xe2\x96\x88 \xf0\x9f\x92\xa1";
  EXPECT_EQ(Printable(text), text);
  EXPECT_EQ(Printable(""), "");
}

TEST(PrintableTest, WhatIsNoUtf8) {
  EXPECT_EQ(Printable("\x9b"
                      "31m \xff \xe2\x96"),
            "?31m ? ??");
}

TEST(PrintableTest, WhatMakesALineReadAsAnother) {
  EXPECT_EQ(Printable("a\u202egpj.sh"), "a?gpj.sh");
  for (const char* order : {"\u061c", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u2066",
                            "\u2069", "\u2060", "\ufeff", "\U000e0041"}) {
    EXPECT_EQ(Printable(absl::StrCat("x", order, "y")), "x?y");
  }
  // Words of Persian, of which a joiner is a part; emoji that are made of several.
  for (const char* text : {"\u0645\u06cc\u200c\u062e", "\U0001f469\u200d\U0001f4bb", "\u2027\u202f\u2070"})
    EXPECT_EQ(Printable(text), text);
}

TEST(PrintableTest, Uses) {
  EXPECT_EQ(Output::ErrorText(absl::NotFoundError("no '\x1b[2J'\nwhy")),
            "rekindle: error: no '?[2J'\n  why\n");
  EXPECT_EQ(Shown("a\x1b\n\xc2\x9b\xc3\xa9", 10), "a? ?\xc3\xa9");
}

}  // namespace
}  // namespace rekindle::cli
