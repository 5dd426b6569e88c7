// CRIU's image files, which `rekindle import` takes from anybody.
#include <cstdint>

#include "criu/image_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view content(reinterpret_cast<const char*>(data), size);
  (void)rekindle::criu::ParsePstree(content);
  (void)rekindle::criu::ParseInventory(content);
  if (auto pagemap = rekindle::criu::ParsePagemap(content); pagemap.ok()) {
    (void)rekindle::criu::SerializePagemap(*pagemap);
  }
  (void)rekindle::criu::ParseMm(content);
  (void)rekindle::criu::HugePagesDisabled(content);
  (void)rekindle::criu::ParseDumpStats(content);
  (void)rekindle::criu::ParseRegularFiles(content);
  (void)rekindle::criu::RearmExpiredTimers(content);
  (void)rekindle::criu::ForgetSizes(content, {"/a"});
  (void)rekindle::criu::TellUnsentAsSent(content);
  return 0;
}
