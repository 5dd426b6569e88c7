#include "cli/hints.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/near_words.h"
#include "cli/foreign_words.h"
#include "cli/leading_words.h"
#include "cli/table.h"

namespace rekindle::cli {
namespace {

// What removes, ends or takes over something.
constexpr absl::string_view kCarefulCommands[] = {"rm", "prune", "gc", "stop", "down", "drop", "resolve"};
constexpr absl::string_view kCarefulOptions[] = {"--stop", "--replace", "--force", "--repair", "--gc"};
constexpr size_t kMostOthers = 3;     // commands that have the option
constexpr size_t kLongestShown = 80;  // of a word that is wrong

// What a word may have been meant for that a command has no place for.
constexpr std::pair<absl::string_view, absl::string_view> kWordsMeant[] = {
    {"copy", "the other place is given with --to PLACE or --from PLACE"},
    {"export", "a file is given with --file FILE, a folder for CRIU's files with --criu DIR"},
    {"import", "a file is given with --file FILE, a folder of CRIU's files with --criu DIR"},
};

template <size_t N>
bool IsOneOf(absl::string_view word, const absl::string_view (&words)[N]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

bool IsOption(absl::string_view word) { return word.size() > 1 && word[0] == '-' && word != "--"; }

std::string WithoutValue(absl::string_view option) { return std::string(option.substr(0, option.find('='))); }

std::string Quoted(absl::string_view word) {
  return absl::StrCat("'", Shown(std::string(word), kLongestShown), "'");
}

// "fn deploy" of the commands that were named; empty: none.
std::string PathOf(const std::vector<const CLI::App*>& named) {
  return absl::StrJoin(std::next(named.begin()), named.end(), " ",
                       [](std::string* out, const CLI::App* app) { out->append(app->get_name()); });
}

// `option` with dashes, of `app` or a command below it: the commands that have it.
void FindWhoHas(const CLI::App& app, const std::string& path, const std::string& option,
                std::vector<std::string>* commands) {
  for (const CLI::App* below : app.get_subcommands({})) {
    const std::string name = absl::StrCat(path, path.empty() ? "" : " ", below->get_name());
    const std::vector<std::string> options = OptionsOf(*below);
    if (std::find(options.begin(), options.end(), option) != options.end())
      commands->push_back(absl::StrCat("'rekindle ", name, "'"));
    FindWhoHas(*below, name, option, commands);
  }
}

// CLI11 has taken letters off "-detach" that are options.
std::string AsWritten(const std::string& left, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (left[1] != '-' && IsOption(word) && word[1] != '-' && word.size() > left.size() &&
        absl::EndsWith(word, left.substr(1))) {
      return word;
    }
  }
  return left;
}

std::string NearOption(const std::string& option, const std::vector<const CLI::App*>& named) {
  std::vector<KnownWord> known;
  for (const CLI::App* app : named) {
    for (const std::string& name : OptionsOf(*app)) {
      // Of each command and of the whole.
      if (!absl::StartsWith(name, "--") || (name == "--help" && app != named.back())) continue;
      if (option == name.substr(1)) return name;  // -name
      known.push_back({name.substr(2), IsOneOf(name, kCarefulOptions)});
    }
  }
  if (!absl::StartsWith(option, "--")) return "";
  const std::string near = NearWord(absl::string_view(option).substr(2), known);
  return near.empty() ? "" : absl::StrCat("--", near);
}

std::string WrongOption(const std::string& option, const std::vector<const CLI::App*>& named,
                        const CLI::App& all) {
  const std::string path = PathOf(named), none = absl::StrCat("there is no option ", Quoted(option));
  const std::string of = path.empty() ? "" : absl::StrCat(" of 'rekindle ", path, "'");
  if (const std::string note = ForeignOptionNote(path, option); !note.empty())
    return absl::StrCat(none, of, absl::StartsWith(note, "nor ") ? ", " : ": ", note);
  if (const std::string near = NearOption(option, named); !near.empty())
    return absl::StrCat(none, ": did you mean '", near, "'?");
  // "-Ddir"
  if (option.size() > 2 && option[1] != '-' && !ForeignOptionNote(path, option.substr(0, 2)).empty())
    return WrongOption(option.substr(0, 2), named, all);
  std::vector<std::string> others;
  FindWhoHas(all, "", option, &others);
  if (others.empty() || others.size() > kMostOthers) return none;
  return absl::StrCat(none, path.empty() ? " before a command" : of, ", but ", absl::StrJoin(others, " and "),
                      others.size() == 1 ? " has it" : " have it");
}

std::string WrongCommand(const std::string& word, const CLI::App& above, const std::string& path) {
  const std::string before = path.empty() ? "" : absl::StrCat(path, " ");
  const std::string none = absl::StrCat("there is no command ", Quoted(absl::StrCat(before, word)));
  if (const ForeignCommand* foreign = FindForeignCommand(path, word)) {
    if (foreign->ours.empty()) return absl::StrCat(none, ": ", foreign->note);
    return absl::StrCat(none, ": did you mean 'rekindle ", foreign->ours, "'?",
                        foreign->note.empty() ? "" : " ", foreign->note);
  }
  std::vector<KnownWord> known;
  for (const std::string& name : CommandsBelow(above))
    known.push_back({name, IsOneOf(name, kCarefulCommands)});
  if (const std::string near = NearWord(word, known); !near.empty())
    return absl::StrCat(none, ": did you mean 'rekindle ", before, near, "'?");
  // A few are named as they are; `--help` has all that rekindle has.
  if (path.empty()) return none;
  return absl::StrCat(none, ": there are ", absl::StrJoin(CommandsBelow(above), ", "));
}

}  // namespace

std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(absl::StrCat("--", name));
    for (const std::string& name : option->get_snames()) names.push_back(absl::StrCat("-", name));
  }
  return names;
}

std::vector<std::string> CommandsBelow(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* below : app.get_subcommands({})) names.push_back(below->get_name());
  return names;
}

std::string WrongWord(const CLI::App& app, const CLI::App& all, const std::vector<std::string>& words) {
  std::vector<const CLI::App*> named = {&app};
  const LeadingWords leading = LeadingOptions(words);
  for (const std::string& word : leading.options) {
    const std::string option = WithoutValue(word);
    if (app.get_option_no_throw(option) == nullptr) return WrongOption(option, named, all);
  }
  const std::vector<std::string> commands = CommandsBelow(all);
  if (leading.end < words.size() &&
      std::find(commands.begin(), commands.end(), words[leading.end]) == commands.end()) {
    return WrongCommand(words[leading.end], all, "");
  }
  while (!named.back()->get_subcommands().empty()) named.push_back(named.back()->get_subcommands().front());
  std::vector<std::string> left;
  for (const std::string& word : app.remaining(true)) {
    if (IsOption(word)) return WrongOption(WithoutValue(AsWritten(word, words)), named, all);
    if (word != "--") left.push_back(word);
  }
  const std::string path = PathOf(named);
  if (!named.back()->get_subcommands({}).empty()) {
    if (!left.empty()) return WrongCommand(left.front(), *named.back(), path);
    if (path.empty()) return "";
    return absl::StrCat(
        "'rekindle ", path, "' does nothing by itself: there are ",
        absl::StrJoin(CommandsBelow(*named.back()), ", ", [&](std::string* out, const std::string& name) {
          absl::StrAppend(out, "'", path, " ", name, "'");
        }));
  }
  if (left.empty()) return "";
  const auto meant = std::find_if(std::begin(kWordsMeant), std::end(kWordsMeant),
                                  [&](const auto& command) { return command.first == path; });
  return absl::StrCat(Quoted(left.front()), left.size() == 1 ? " is a word" : " and what follows are words",
                      " too many for 'rekindle ", path, "'",
                      meant == std::end(kWordsMeant) ? "" : absl::StrCat(": ", meant->second));
}

}  // namespace rekindle::cli
