#include "functions/function_record_file.h"

#include "absl/strings/str_cat.h"
#include "base/record_file.h"
#include "base/status.h"
#include "rekindle/v1/function_record.pb.h"

namespace rekindle::functions {
namespace {

constexpr uint32_t kFormat = 1;

}  // namespace

std::string FunctionsDirectory(const std::string& store) { return store + "/functions"; }

absl::Status WriteFunctionRecord(const std::string& path, const FunctionRecord& record) {
  v1::FunctionRecord file;
  file.set_format(kFormat);
  *file.mutable_spec() = ToProto(record.spec);
  file.set_owner_uid(record.owner.uid);
  file.set_owner_gid(record.owner.gid);
  file.mutable_owner_groups()->Assign(record.owner.groups.begin(), record.owner.groups.end());
  file.set_revision(record.revision);
  file.set_code_sha256(record.code_sha256);
  file.set_code_bytes(record.code_bytes);
  file.set_own_code_bytes(record.own_code_bytes);
  file.set_deployed_unix_ns(record.deployed_unix_ns);
  file.set_dependency_image(record.images.dependency_image);
  file.set_function_image(record.images.function_image);
  file.mutable_dependencies()->Assign(record.images.dependencies.begin(), record.images.dependencies.end());
  file.mutable_layers()->Assign(record.layers.begin(), record.layers.end());
  file.mutable_of_layers()->Assign(record.images.of_layers.begin(), record.images.of_layers.end());
  file.mutable_not_loaded()->Assign(record.images.not_loaded.begin(), record.images.not_loaded.end());
  file.set_load_failure(record.images.load_failure);
  return WriteRecordFile(path, file);
}

absl::StatusOr<FunctionRecord> ReadFunctionRecord(const std::string& path) {
  RK_ASSIGN_OR_RETURN(const auto file, ReadRecordFile<v1::FunctionRecord>(path, kFormat));
  absl::StatusOr<FunctionSpec> spec = FunctionSpecFrom(file.spec());
  if (!spec.ok()) return UnusableRecord(path, spec.status().message());
  if (file.revision() == 0) return UnusableRecord(path, "it names no revision");
  FunctionRecord record;
  record.spec = *std::move(spec);
  record.owner.uid = file.owner_uid();
  record.owner.gid = file.owner_gid();
  record.owner.groups.assign(file.owner_groups().begin(), file.owner_groups().end());
  record.revision = file.revision();
  record.code_sha256 = file.code_sha256();
  record.code_bytes = file.code_bytes();
  record.own_code_bytes = file.own_code_bytes();
  record.deployed_unix_ns = file.deployed_unix_ns();
  record.images.dependency_image = file.dependency_image();
  record.images.function_image = file.function_image();
  record.images.dependencies.assign(file.dependencies().begin(), file.dependencies().end());
  record.images.of_layers.assign(file.of_layers().begin(), file.of_layers().end());
  record.images.not_loaded.assign(file.not_loaded().begin(), file.not_loaded().end());
  record.images.load_failure = file.load_failure();
  record.layers.assign(file.layers().begin(), file.layers().end());
  if (!record.layers.empty() && record.layers.size() != record.spec.LayerFolders().size())
    return UnusableRecord(path, "it does not name the layers that it has");
  return record;
}

}  // namespace rekindle::functions
