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
    return absl::InvalidArgumentError(
        absl::StrCat("line ", number, ", '", ToUtf8(line, kMostOfLineShown), "': ", why));
  };
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    for (absl::string_view rest = line; !rest.empty();) {
      const Utf8Character character = FirstUtf8Character(rest);
      if (!character.whole || (IsControlCharacter(rest.substr(0, character.bytes)) && rest[0] != '\t'))
        return absl::InvalidArgumentError(absl::StrCat("line ", number, " is no text (UTF-8)"));
      rest.remove_prefix(character.bytes);
    }
    if (in_array) {
      in_array = !absl::EndsWith(line, "]");
      continue;
    }
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') return wrong(line, "options of rekindled have no sections: leave that line out");
    const size_t sign = line.find('=');
    const absl::string_view name = absl::StripAsciiWhitespace(line.substr(0, sign));
    if (sign == absl::string_view::npos) {
      if (flags.contains(std::string(name))) continue;
      return wrong(line, "it has no value: write OPTION = VALUE");
    }
    const absl::string_view value = absl::StripAsciiWhitespace(line.substr(sign + 1));
    if (name.empty()) return wrong(line, "it names no option: write OPTION = VALUE");
    if (value.empty() || value == "\"\"" || value == "''" || value[0] == '#')
      return wrong(line, "the value is empty: give one, or leave the line out");
    in_array = value[0] == '[' && !absl::StrContains(value, ']');
  }
  return absl::OkStatus();
}

std::shared_ptr<CLI::Config> CheckedConfig(const CLI::App& app) { return std::make_shared<Checked>(app); }

}  // namespace rekindle::daemon
