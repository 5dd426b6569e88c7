#include "criu/terminal_files.h"

#include <fcntl.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "criu/image_records.h"
#include "criu/images.pb.h"

namespace rekindle::criu {
namespace {

constexpr uint32_t kExternalTerminal = 5;  // TtyInfo::type

// `*others`: the same image without them.
absl::StatusOr<std::set<uint32_t>> ExternalTerminals(const std::string& content, std::string* others) {
  std::set<uint32_t> ids;
  RecordWriter left(kTtyInfoMagic);
  RK_RETURN_IF_ERROR(
      ForEachRecord<pb::TtyInfo>("terminal", content, kTtyInfoMagic, [&](const pb::TtyInfo& terminal) {
        if (terminal.type() == kExternalTerminal) {
          ids.insert(terminal.id());
        } else {
          left.Add(terminal);
        }
      }));
  *others = left.Take();
  return ids;
}

pb::FileEntry PlainFile(uint32_t id, const pb::TtyFile& terminal, uint32_t flags, const char* name) {
  pb::FileEntry entry;
  entry.set_type(kRegularFileType);
  entry.set_id(id);
  pb::RegularFile* file = entry.mutable_regular();
  file->set_id(id);
  file->set_flags(flags);
  file->set_position(0);
  file->set_owner(terminal.owner());
  file->set_path(absl::StrCat("/", name));  // a path of CRIU's, which names the resource without it
  return entry;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> WithoutTerminals(
    const std::map<std::string, std::string>& images) {
  std::map<std::string, std::string> changed;
  const auto terminals = images.find("tty-info.img"), files = images.find("files.img");
  if (terminals == images.end() || files == images.end()) return changed;
  std::string others;
  RK_ASSIGN_OR_RETURN(const std::set<uint32_t> external, ExternalTerminals(terminals->second, &others));
  if (external.empty()) return changed;

  std::vector<pb::FileEntry> entries;
  uint32_t last = 0;
  RK_RETURN_IF_ERROR(ForEachFile(files->second, [&](pb::FileEntry& entry) {
    last = std::max(last, entry.id());
    entries.push_back(std::move(entry));
  }));
  std::map<uint32_t, uint32_t> inputs;  // by the number of the terminal's file, which the output gets
  RecordWriter new_files(kFilesMagic);
  for (const pb::FileEntry& entry : entries) {
    if (!entry.has_terminal() || !external.contains(entry.terminal().terminal_id())) {
      new_files.Add(entry);
      continue;
    }
    inputs[entry.id()] = ++last;
    new_files.Add(PlainFile(entry.id(), entry.terminal(), O_WRONLY | O_APPEND, kInsteadOfTerminalOutput));
    new_files.Add(PlainFile(last, entry.terminal(), O_RDONLY, kInsteadOfTerminalInput));
  }
  if (inputs.empty()) return changed;
  changed["files.img"] = new_files.Take();
  // CRIU restores no image with one that it neither knows nor is given.
  changed["tty-info.img"] = std::move(others);

  for (const auto& [name, content] : images) {
    if (!absl::StartsWith(name, "fdinfo-")) continue;
    RecordWriter new_descriptors(kFdinfoMagic);
    RK_RETURN_IF_ERROR(
        ForEachRecord<pb::Descriptor>("fdinfo", content, kFdinfoMagic, [&](pb::Descriptor& descriptor) {
          if (auto input = inputs.find(descriptor.file_id()); input != inputs.end()) {
            descriptor.set_type(kRegularFileType);
            if (descriptor.fd() == 0) descriptor.set_file_id(input->second);
          }
          new_descriptors.Add(descriptor);
        }));
    changed[name] = new_descriptors.Take();
  }
  return changed;
}

}  // namespace rekindle::criu
