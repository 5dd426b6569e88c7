#include "base/utf8.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace rekindle {
namespace {

TEST(ToUtf8, LeavesTextAlone) {
  EXPECT_EQ(ToUtf8(""), "");
  EXPECT_EQ(ToUtf8("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\xa5"), "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\xa5");
}

TEST(ToUtf8, ReplacesWhatIsNone) {
  EXPECT_EQ(ToUtf8("caf\xe9.txt"), "caf?.txt");
  EXPECT_EQ(ToUtf8("\xc0\xaf"), "??");            // longer than it need be
  EXPECT_EQ(ToUtf8("\xed\xa0\x80"), "???");       // half of a pair of UTF-16
  EXPECT_EQ(ToUtf8("\xf4\x90\x80\x80"), "????");  // beyond the last character
  EXPECT_EQ(ToUtf8("a\xe2\x82"), "a??");          // ends too early
}

TEST(ToUtf8, CutsNoCharacterInTwo) {
  EXPECT_EQ(ToUtf8("ab\xc3\xbc", 4), "ab\xc3\xbc");
  EXPECT_EQ(ToUtf8("ab\xc3\xbc", 3), "ab");
  EXPECT_EQ(ToUtf8("ab\xff", 2), "ab");
  EXPECT_EQ(ToUtf8("ab", 0), "");
}

TEST(ReplaceInText, AsksForWhatIsNotPrintableAscii) {
  const auto replaced = [](absl::string_view text) {
    return ReplaceInText(text, [](absl::string_view bytes, bool whole, std::string* out) {
      absl::StrAppend(out, whole ? "<" : "[", bytes.size(), whole ? ">" : "]");
    });
  };
  EXPECT_EQ(replaced(""), "");
  EXPECT_EQ(replaced("~ plain, all of it"), "~ plain, all of it");
  EXPECT_EQ(replaced("a\n\x7f"
                     "b"),
            "a<1><1>b");
  EXPECT_EQ(replaced("caf\xc3\xa9 \xf0\x9f\x94\xa5"), "caf<2> <4>");
  EXPECT_EQ(replaced("caf\xe9."), "caf[1].");
  EXPECT_EQ(replaced("a\xe2\x82"), "a[1][1]");
}

}  // namespace
}  // namespace rekindle
