exports.handler = async () => require('path').basename(__dirname);
