#include "daemon/config_file.h"

#include <istream>
#include <iterator>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/utf8.h"

namespace rekindle::daemon {
namespace {

constexpr size_t kMostOfLineShown = 60;
// CLI11 leaves shorter ones out.
constexpr size_t kFewestOfLine = 3;
constexpr absl::string_view kNeverEmpty = "store";

bool IsText(absl::string_view line) {
  while (!line.empty()) {
    const Utf8Character character = FirstUtf8Character(line);
    if (!character.whole || (IsControlCharacter(line.substr(0, character.bytes)) && line[0] != '\t'))
      return false;
    line.remove_prefix(character.bytes);
  }
  return true;
}

absl::string_view BeforeComment(absl::string_view value) {
  return absl::StripAsciiWhitespace(value.substr(0, value.find('#')));
}

absl::string_view Unquoted(absl::string_view word) {
  const bool quoted =
      word.size() > 1 && word.front() == word.back() && (word.front() == '"' || word.front() == '\'');
  return quoted ? word.substr(1, word.size() - 2) : word;
}

// "[default]", which is where options are that have no section.
bool IsDefaultSection(absl::string_view line) {
  for (int i = 0; i < 2 && absl::StartsWith(line, "[") && absl::EndsWith(line, "]"); ++i)
    line = line.substr(1, line.size() - 2);
  return absl::EqualsIgnoreCase(line, "default");
}

class Checked final : public CLI::ConfigTOML {
 public:
  explicit Checked(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::string text{std::istreambuf_iterator<char>(input), std::istreambuf_iterator<char>()};
    std::set<std::string> flags;
    for (const CLI::Option* option : app_.get_options()) {
      if (option->get_items_expected_max() == 0)
        flags.insert(option->get_lnames().begin(), option->get_lnames().end());
    }
    if (const absl::Status status = CheckConfigText(text, flags); !status.ok())
      throw CLI::ConfigError(std::string(status.message()));
    std::istringstream again(text);
    return CLI::ConfigTOML::from_config(again);
  }

 private:
  const CLI::App& app_;
};

}  // namespace

absl::Status CheckConfigText(absl::string_view text, const std::set<std::string>& flags) {
  size_t number = 0;
  bool in_array = false;
  const auto wrong = [&](absl::string_view line, absl::string_view why) {
    if (!IsText(line))
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " is no text (UTF-8)"));
    return absl::InvalidArgumentError(
        absl::StrCat("line ", number, ", '", ToUtf8(line, kMostOfLineShown), "': ", why));
  };
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (in_array) {
      in_array = !absl::EndsWith(line, "]");
      continue;
    }
    if (line.size() < kFewestOfLine || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      if (IsDefaultSection(line)) continue;
      return wrong(line, "options of rekindled have no sections: leave that line out");
    }
    const size_t sign = line.find('=');
    if (sign == absl::string_view::npos) {
      if (flags.contains(std::string(Unquoted(BeforeComment(line))))) continue;
      return wrong(line, "it has no value: write OPTION = VALUE");
    }
    const absl::string_view name = absl::StripAsciiWhitespace(line.substr(0, sign));
    const absl::string_view value = BeforeComment(line.substr(sign + 1));
    if (name.empty()) return wrong(line, "it names no option: write OPTION = VALUE");
    // Others may be left empty for what they are without.
    if (Unquoted(name) == kNeverEmpty && Unquoted(value).empty())
      return wrong(line, "the value is empty: give one, or leave the line out");
    if (value == "[") return wrong(line, "write the first value behind the '[', on the same line");
    in_array = absl::StartsWith(value, "[") && !absl::EndsWith(value, "]");
  }
  return absl::OkStatus();
}

std::shared_ptr<CLI::Config> CheckedConfig(const CLI::App& app) { return std::make_shared<Checked>(app); }

}  // namespace rekindle::daemon
