#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/human_units.h"
#include "cli/table.h"
#include "cli/timeline.h"

namespace rekindle::cli {
namespace {

constexpr double kNanosPerSecond = 1e9;
// Rows below this share of the whole say nothing, unless they are phases.
constexpr double kLeastShare = 0.005;

struct Row {
  const v1::Span* span = nullptr;
  int depth = 0;
  int64_t end = 0;   // within its parent
  int64_t self = 0;  // not spent in rows below it
};

int64_t EndOf(const v1::Span& span) { return span.begin_ns() + span.duration_ns(); }

int64_t Number(const v1::Span* span, const char* name) {
  if (span == nullptr) return 0;
  auto found = span->numbers().find(name);
  return found == span->numbers().end() ? 0 : found->second;
}

const v1::Span* Find(const v1::Timeline& timeline, absl::string_view process, absl::string_view name) {
  for (const v1::Span& span : timeline.spans()) {
    if (span.process() == process && span.name() == name) return &span;
  }
  return nullptr;
}

// What the job waited for, one thing after the other: what others did meanwhile is left out.
std::vector<const v1::Span*> Waited(const v1::Timeline& timeline) {
  const v1::Span* last_task = nullptr;
  for (const v1::Span& span : timeline.spans()) {
    if (span.process() == "criu" && absl::StartsWith(span.thread(), "task ") &&
        (last_task == nullptr || EndOf(span) > EndOf(*last_task))) {
      last_task = &span;
    }
  }
  std::vector<const v1::Span*> waited;
  for (const v1::Span& span : timeline.spans()) {
    const bool of_last_task =
        last_task != nullptr && span.process() == "criu" && span.thread() == last_task->thread();
    if (span.thread() == "restore" || of_last_task) waited.push_back(&span);
  }
  std::stable_sort(waited.begin(), waited.end(), [](const v1::Span* a, const v1::Span* b) {
    return a->begin_ns() != b->begin_ns() ? a->begin_ns() < b->begin_ns() : EndOf(*a) > EndOf(*b);
  });
  return waited;
}

std::vector<Row> RowsOf(const v1::Timeline& timeline) {
  std::vector<Row> rows;
  std::vector<size_t> open;  // rows that the next one may lie in, the innermost last
  for (const v1::Span* span : Waited(timeline)) {
    while (!open.empty() && rows[open.back()].end <= span->begin_ns()) open.pop_back();
    Row row;
    row.span = span;
    row.depth = static_cast<int>(open.size());
    row.end = open.empty() ? EndOf(*span) : std::min(EndOf(*span), rows[open.back()].end);
    row.self = row.end - span->begin_ns();
    if (!open.empty()) rows[open.back()].self -= row.self;
    open.push_back(rows.size());
    rows.push_back(row);
  }
  return rows;
}

std::string Note(const v1::Timeline& timeline, const v1::Span& span) {
  std::vector<std::string> parts;
  auto add = [&](const char* number, absl::string_view text) {
    if (Number(&span, number) > 0) parts.push_back(absl::StrCat(Number(&span, number), " ", text));
  };
  add("mappings", "mappings");
  add("pages", "pages");
  add("lazy_pages", "pages come later");
  if (Number(&span, "bytes") > 0) parts.push_back(FormatBytes(static_cast<uint64_t>(Number(&span, "bytes"))));
  if (Number(&span, "loaded_bytes") > 0) {
    parts.push_back(
        absl::StrCat(FormatBytes(static_cast<uint64_t>(Number(&span, "loaded_bytes"))), " from the store"));
  }
  if (span.process() == "rekindle" && span.name() == "answer") {
    const v1::Span* serving = Find(timeline, "pager", "serving");
    const int64_t faults = Number(serving, "faults") + Number(serving, "zero_faults");
    if (serving != nullptr) parts.push_back(absl::StrCat(faults, " page faults"));
  }
  std::string note;
  for (const std::string& part : parts) absl::StrAppend(&note, note.empty() ? "" : ", ", part);
  return note;
}

// What to do about it, as far as that is known.
std::string Cure(const v1::Timeline& timeline, const v1::Span& span) {
  const std::string what = absl::StrCat(span.process(), "/", span.name());
  const int64_t loaded = Number(&span, "loaded_bytes");
  if (what == "rekindle/prepare" && Number(&span, "kept") == 0) {
    return "It was the first copy of this image: a daemon keeps what the next ones need.";
  }
  if (what == "rekindle/reaching the pager") {
    return "The pager is started with the first copy, and stays for the next ones.";
  }
  if (what == "rekindle/sandbox pool") {
    return "What makes sandboxes is started with the first copy: a daemon keeps it.";
  }
  if (what == "rekindle/sandbox" && Number(&span, "made_ahead") == 0) {
    return Number(&span, "descriptors_of_the_caller") > 0
               ? "The sandbox was made for this copy alone, which is given descriptors of the caller: with "
                 "--detach, and without --log, it is one that the daemon has made ahead of time."
               : "No sandbox of this kind was ready: a daemon makes some ahead of time, once the first of a "
                 "kind was asked for.";
  }
  if (what == "pager/attach") return "The pager had to open the image: it keeps that for the next copies.";
  if (what == "criu/kernel features") {
    return "CRIU asks the kernel what it can do unless it finds the answer kept in /run: make /run a tmpfs, "
           "or use --clone, for which the answer is kept.";
  }
  if (what == "criu/placing memory" || what == "criu/mappings") {
    const v1::Span* mappings = Find(timeline, "criu", "mappings");
    return absl::StrCat(
        "CRIU treats each of the ", Number(mappings, "mappings"),
        " mappings by itself: a program with fewer of them, of libraries above all, comes back "
        "sooner.");
  }
  if (what == "rekindle/pages" || what == "pager/all of its memory") {
    return "All memory was put in before the job ran: with --clone and --fill idle or never it comes while "
           "it "
           "runs.";
  }
  if (span.process() == "pager" && loaded > 0) {
    return absl::StrCat(FormatBytes(static_cast<uint64_t>(loaded)),
                        " were not in the pager's cache and came from the store: the next copies find them "
                        "there.");
  }
  if (what == "rekindle/answer") {
    const v1::Span* serving = Find(timeline, "pager", "serving");
    if (serving == nullptr) return "That is the program's own time.";
    const int64_t faults = Number(serving, "faults");
    if (faults > 0 && Number(Find(timeline, "pager", "attach"), "working_set_pages") == 0) {
      return absl::StrCat("It waited for ", faults,
                          " pages one by one: no working set was recorded yet; the next copies have it in "
                          "place before they run.");
    }
    return absl::StrCat("That is the program's own time, and ", faults,
                        " pages that the recorded working set does not have.");
  }
  return "";
}

// What goes on after the start.
std::string Recording(const v1::Timeline& timeline) {
  const int64_t milliseconds = Number(Find(timeline, "pager", "attach"), "record_ms");
  if (milliseconds == 0 || Find(timeline, "rekindle", "answer") != nullptr) return "";
  return absl::StrCat("Its working set is recorded ",
                      Number(Find(timeline, "pager", "finding its listening sockets"), "found") > 0
                          ? "until it has answered a request on a socket that it listens on, at most "
                          : "for ",
                      FormatSeconds(static_cast<double>(milliseconds) / 1e3),
                      "; 'rekindle inspect' shows it then.\n");
}

}  // namespace

std::string Explain(const v1::Timeline& timeline) {
  const std::vector<Row> rows = RowsOf(timeline);
  if (rows.empty()) return "";
  const Row& all = rows.front();
  const int64_t begin = all.span->begin_ns();
  const double total = std::max<double>(1, static_cast<double>(all.end - begin));
  using Align = Table::Align;
  Table table(
      {{"WHAT"}, {"BY"}, {"AFTER", Align::kRight}, {"TOOK", Align::kRight}, {"SHARE", Align::kRight}, {""}});
  const Row* largest = nullptr;
  for (const Row& row : rows) {
    if (&row != &all && (largest == nullptr || row.self > largest->self)) largest = &row;
    const double took = static_cast<double>(row.end - row.span->begin_ns());
    if (row.depth > 1 && took < kLeastShare * total) continue;
    table.AddRow({std::string(static_cast<size_t>(2 * std::max(row.depth - 1, 0)), ' ') + row.span->name(),
                  row.span->process(),
                  FormatSeconds(static_cast<double>(row.span->begin_ns() - begin) / kNanosPerSecond),
                  FormatSeconds(took / kNanosPerSecond), absl::StrFormat("%.1f %%", 100 * took / total),
                  Note(timeline, *row.span)});
  }
  std::string text = table.ToString();
  if (largest == nullptr) return text;
  absl::StrAppend(&text, "Largest: ", largest->span->name(), " (", largest->span->process(), "), ",
                  FormatSeconds(static_cast<double>(largest->self) / kNanosPerSecond), ", ",
                  absl::StrFormat("%.0f %%", 100 * static_cast<double>(largest->self) / total), ".");
  const std::string cure = Cure(timeline, *largest->span);
  absl::StrAppend(&text, cure.empty() ? "" : " ", cure, "\n", Recording(timeline));
  return text;
}

}  // namespace rekindle::cli
