// function.json of a deployed function.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "functions/function_catalog.h"

namespace rekindle::functions {

// In a store, the folder of its functions; in that NAME/function.json.
std::string FunctionsDirectory(const std::string& store);
inline constexpr absl::string_view kRecordFile = "function.json";

// All at once: after a crash it is the old file or the new one.
absl::Status WriteFunctionRecord(const std::string& path, const FunctionRecord& record);
// Without `folder`. NotFound: there is no such file; DataLoss: it makes no sense; FailedPrecondition: it is
// of a newer version; any other error: it can't be read now.
absl::StatusOr<FunctionRecord> ReadFunctionRecord(const std::string& path);

}  // namespace rekindle::functions
