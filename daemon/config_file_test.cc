#include "daemon/config_file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/match.h"

namespace rekindle::daemon {
namespace {

absl::Status CheckText(absl::string_view text) { return CheckConfigText(text, {"verbose"}); }

TEST(ConfigFileTest, WhatIsRead) {
  for (const char* text :
       {"", "# only this\n", "grace = 5\n\n;x\nstore = \"/srv/a b\"", "verbose\ngrace=5", "verbose = true",
        "functions-http = [\"unix:/a\",\n  \"unix:/b\"]\ngrace = 5\n", "group = \"\xc3\xa9\"",
        // As CLI11 takes it.
        "functions-http = [\"unix:/[a]\",\n  \"unix:/b\"]\ngrace = 5\n", "# caf\xe9\ngroup = caf\xe9",
        "verbose  # more\n[default]\n[[Default]]\n{\n}", "metrics = \"\"\nlisten = # none\ngroup = ''"}) {
    EXPECT_TRUE(CheckText(text).ok()) << text << ": " << CheckText(text);
  }
}

TEST(ConfigFileTest, WhatIsNotIsToldByItsLine) {
  for (const auto& [text, told] :
       {std::pair("a = 1\n[daemon]\n", "line 2, '[daemon]': options of rekindled have no sections"),
        std::pair("grace\n", "line 1, 'grace': it has no value"),
        std::pair("\ngrace 5", "line 2, 'grace 5': it has no value"),
        std::pair("{ }", "line 1, '{ }': it has no value"), std::pair("store =", "the value is empty"),
        std::pair("store = \"\"  # none", "the value is empty"), std::pair("= 5", "it names no option"),
        std::pair("a = 1\nb = [1\n , 2\n]\nverb", "line 5, 'verb'"),
        std::pair("\x7f"
                  "ELF\x80\xff",
                  "line 1 is no text"),
        std::pair("b = [\n 1\n]", "on the same line")}) {
    const absl::Status status = CheckText(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StrContains(status.message(), told)) << status;
  }
}

}  // namespace
}  // namespace rekindle::daemon
