// Rows of text in columns, for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace rekindle::cli {

// Not thread-safe.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as there are columns.
  void AddRow(std::vector<std::string> cells);
  // A line of titles, then the rows; two spaces between columns, none at the ends of lines.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns that UTF-8 text takes on a terminal, near enough: one for each character.
size_t DisplayWidth(const std::string& text);

// "3 min ago", "2 h ago", "5 d ago".
std::string Age(int64_t unix_ns, int64_t now_unix_ns);

// Text from elsewhere (a command line, a label) as it may be shown on a terminal: line breaks and
// tabs become spaces, other control characters '?', and what is longer than `longest` ends in an ellipsis.
std::string Shown(const std::string& text, size_t longest);

}  // namespace rekindle::cli
