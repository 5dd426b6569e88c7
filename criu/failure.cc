#include "criu/failure.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "criu/failure_table.h"

namespace rekindle::criu {
namespace {

constexpr char kDiagnosisUrl[] = "rekindle/criu-diagnosis";  // of a status's payload

constexpr size_t kMaxLines = 5;
constexpr size_t kMaxLineBytes = 300;

// Said by every run on machines like ours, successful ones included.
constexpr absl::string_view kHarmless[] = {
    "Can't setup RLIMIT_NOFILE for self",
    "Can't keep kdat cache on non-tempfs",
};

bool IsHarmless(absl::string_view line) {
  for (absl::string_view text : kHarmless) {
    if (absl::StrContains(line, text)) return true;
  }
  return false;
}

// Drops the time stamp "(00.012345)" and, in a restore's log, the "  4711: " of the task that speaks.
absl::string_view WithoutStamps(absl::string_view line) {
  line = absl::StripAsciiWhitespace(line);
  if (absl::StartsWith(line, "(")) {
    size_t end = line.find(')');
    if (end != absl::string_view::npos && line.find_first_not_of("0123456789.", 1) == end) {
      line = absl::StripLeadingAsciiWhitespace(line.substr(end + 1));
    }
  }
  absl::ConsumePrefix(&line, "pie: ");  // the part of CRIU that runs inside the job
  size_t digits = line.find_first_not_of("0123456789");
  if (digits != absl::string_view::npos && digits > 0 && line[digits] == ':') {
    line = absl::StripLeadingAsciiWhitespace(line.substr(digits + 1));
  }
  return line.substr(0, kMaxLineBytes);
}

bool IsError(absl::string_view line) { return absl::StartsWith(line, "Error "); }

// Not that there was a failure, but which.
bool SaysWhy(absl::string_view line) {
  return IsError(line) && !absl::StrContains(line, "Killing processes because of failure on restore");
}

// A warning is worth a look: of a process that can't be frozen only a warning says why.
bool IsWarning(absl::string_view line) { return absl::StartsWith(line, "Warn "); }

// What the stars of `pattern`, and the # that stand for numbers, stand for when it occurs in `line`.
std::optional<std::vector<std::string>> Match(absl::string_view pattern, absl::string_view line) {
  std::vector<std::string> captured;
  std::vector<absl::string_view> pieces = absl::StrSplit(pattern, absl::ByAnyChar("*#"));
  size_t begin = 0;  // of the piece, in the pattern
  for (size_t i = 0; i < pieces.size(); ++i) {
    size_t at = line.find(pieces[i]);
    if (at == absl::string_view::npos) return std::nullopt;
    bool to_the_end = i + 1 == pieces.size() && pieces[i].empty() && i > 0;
    if (i > 0) captured.emplace_back(to_the_end ? line : line.substr(0, at));
    const bool is_number = i > 0 && pattern[begin - 1] == '#';
    if (is_number && !std::all_of(captured.back().begin(), captured.back().end(), absl::ascii_isdigit))
      return std::nullopt;
    begin += pieces[i].size() + 1;
    line.remove_prefix(to_the_end ? line.size() : at + pieces[i].size());
  }
  return captured;
}

std::string Fill(absl::string_view text, const std::vector<std::string>& captured) {
  std::vector<std::pair<absl::string_view, absl::string_view>> replacements;
  if (!captured.empty()) replacements.emplace_back("$1", captured[0]);
  if (captured.size() > 1) replacements.emplace_back("$2", captured[1]);
  return absl::StrReplaceAll(text, replacements);
}

struct Hit {
  const KnownFailure* failure = nullptr;
  size_t line = 0;  // index into the lines that matter
  std::vector<std::string> captured;
};

// The first cause in the log's order, else the first consequence.
std::optional<Hit> FindHit(Operation operation, const std::vector<absl::string_view>& lines) {
  const uint8_t bit = operation == Operation::kDump ? kOnDump : kOnRestore;
  std::optional<Hit> consequence;
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool is_last = absl::StrContains(lines[i], kRestoringFailed);
    if (is_last && std::any_of(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(i), SaysWhy)) break;
    for (const KnownFailure& failure : KnownFailures()) {
      if ((failure.operations & bit) == 0) continue;
      if (failure.strength == Strength::kConsequence && consequence.has_value()) continue;
      for (const char* pattern : failure.patterns) {
        std::optional<std::vector<std::string>> captured = Match(pattern, lines[i]);
        if (!captured.has_value()) continue;
        Hit hit{&failure, i, *std::move(captured)};
        if (failure.strength == Strength::kCause) return hit;
        if (!consequence.has_value()) consequence = std::move(hit);
      }
    }
    if (is_last) break;
  }
  return consequence;
}

const char* Verb(Operation operation) { return operation == Operation::kDump ? "dump" : "restore"; }

}  // namespace

Diagnosis Diagnose(Operation operation, absl::string_view log) {
  std::vector<absl::string_view> lines;
  for (absl::string_view raw : absl::StrSplit(log, '\n')) {
    absl::string_view line = WithoutStamps(raw);
    if ((IsError(line) || IsWarning(line)) && !IsHarmless(line)) lines.push_back(line);
  }
  Diagnosis diagnosis;
  size_t first = 0;
  if (std::optional<Hit> hit = FindHit(operation, lines)) {
    diagnosis.id = hit->failure->id;
    diagnosis.sentence = Fill(hit->failure->sentence, hit->captured);
    diagnosis.cure = Fill(hit->failure->cure, hit->captured);
    diagnosis.code = hit->failure->code;
    first = hit->line;
  } else if (std::none_of(lines.begin(), lines.end(), IsError)) {
    diagnosis.sentence = absl::StrCat("CRIU's ", Verb(operation), " ended without an error in its log.");
    diagnosis.cure = "Look whether it was killed (out of memory?) in the system's log, and try again.";
  } else {
    diagnosis.sentence =
        absl::StrCat("CRIU's ", Verb(operation), " failed for a reason that Rekindle does not know.");
    diagnosis.cure = "The first error lines of its log usually say why.";
  }
  for (size_t i = first; i < lines.size() && diagnosis.lines.size() < kMaxLines; ++i) {
    if (IsError(lines[i]) || (i == first && !diagnosis.id.empty())) diagnosis.lines.emplace_back(lines[i]);
  }
  return diagnosis;
}

absl::Status FailureStatus(Operation operation, const ExitState& exit, absl::string_view log,
                           absl::string_view log_path) {
  Diagnosis diagnosis = Diagnose(operation, log);
  if (exit.signal != 0 && diagnosis.id.empty()) {
    diagnosis.sentence =
        absl::StrCat("CRIU was ", exit.ToString(), " in the middle of a ", Verb(operation), ".");
    diagnosis.cure = "Try again; when nobody killed it, the system's log may say more (out of memory?).";
    diagnosis.code = absl::StatusCode::kAborted;
  }
  // What is killed so says nothing in its log.
  if (exit.signal == SIGXFSZ) {
    diagnosis.sentence = absl::StrCat("CRIU was killed in the middle of a ", Verb(operation),
                                      ": a file would have become larger than Rekindle may make one.");
    diagnosis.cure = "Raise the limit (`ulimit -f`; LimitFSIZE= of rekindled's unit), and try again.";
    diagnosis.code = absl::StatusCode::kResourceExhausted;
  }
  std::string message = absl::StrCat(diagnosis.sentence, " ", diagnosis.cure);
  for (const std::string& line : diagnosis.lines) absl::StrAppend(&message, "\n  ", line);
  absl::StrAppend(&message, "\n  (CRIU ended with ", exit.ToString(), "; its whole log: ", log_path, ")");
  absl::Status status(diagnosis.code, message);
  status.SetPayload(kDiagnosisUrl, absl::Cord(diagnosis.id));
  return status;
}

bool WasOfTheMoment(const absl::Status& status) {
  const std::string id = DiagnosisId(status);
  return id == "ending-threads" || id == "in-flight";
}

bool IsUnknownFailure(const absl::Status& status) {
  const auto id = status.GetPayload(kDiagnosisUrl);
  return id.has_value() && id->empty();
}

std::string DiagnosisId(const absl::Status& status) {
  return std::string(status.GetPayload(kDiagnosisUrl).value_or(absl::Cord()));
}

}  // namespace rekindle::criu
