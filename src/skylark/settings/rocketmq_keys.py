"""RocketMQ keys of broker (4.9 to 5.5) and name server that are not settings here, with the reasons.

A file that contains them is accepted.
"""

from __future__ import annotations

_UNUSED_BY_REASON = {
    "one event loop serves all requests; there are no thread pools": """
        ackMessageThreadPoolNums adminBrokerThreadPoolNums batchDispatchRequestThreadPoolNums
        clientManageThreadPoolNums clientRequestThreadPoolNums consumerManageThreadPoolNums
        defaultThreadPoolNums dispatchCqCacheNum dispatchCqThreads enableAsyncReput
        enableBuildConsumeQueueConcurrently endTransactionThreadPoolNums heartbeatThreadPoolNums
        litePullMessageThreadPoolNums loadBalanceProcessorThreadPoolNums processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums putMessageFutureThreadPoolNums queryMessageThreadPoolNums
        recoverConcurrently recoverThreadPoolNums sendMessageThreadPoolNums""",
    "these requests are answered immediately and never queued": """
        ackThreadPoolQueueCapacity adminBrokerThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity
        clientRequestThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
        defaultThreadPoolQueueCapacity endTransactionPoolQueueCapacity heartbeatThreadPoolQueueCapacity
        loadBalanceThreadPoolQueueCapacity putThreadPoolQueueCapacity replyThreadPoolQueueCapacity
        unRegisterBrokerQueueCapacity waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
        waitTimeMillsInHeartbeatQueue
        waitTimeMillsInTransactionQueue""",
    "sends are stored as they are read and never queued; excess sends are rejected immediately": """
        brokerFastFailureEnable waitTimeMillsInSendQueue""",
    "a broker registers at every interval and whenever topics change": "forceRegister",
    "lite pulls share the pull queue": "litePullThreadPoolQueueCapacity waitTimeMillsInLitePullQueue",
    "the network layer is not Netty": """
        clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
        clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads connectTimeoutMillis
        channelNotActiveInterval disableCallbackExecutor disableNettyWorkerGroup
        enableFastChannelEventProcess enableNetWorkFlowControl enableReconnectForGoAway
        maxReconnectIntervalTimeSeconds printChannelGroups printChannelGroupsMinNum
        serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
        serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
        serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
        socksProxyConfig transferMsgByHeap useEpollNativeSelector writeBufferHighWaterMark
        writeBufferLowWaterMark""",
    "one thread writes the log, without locks and buffer pools": """
        asyncSendEnable commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
        debugLockEnable dispatchFromSenderThread fastFailIfNoBufferInStorePool highSpeedMode
        maxAsyncPutMessageRequests putMessageTimeout spinLockCollisionRetreatOptimalDegree
        topicQueueLockNum transientStorePoolEnable transientStorePoolSize useABSLock
        useReentrantLockWhenPutMessage wakeCommitWhenPutMessage""",
    "files are written by system calls and read through memory maps": """
        cleanSwapedMapInterval commitLogForceSwapMapInterval commitLogSwapMapInterval
        commitLogSwapMapReserveFileNum dataReadAheadEnable destroyMapedFileIntervalForcibly
        flushLeastPagesWhenWarmMapedFile logicQueueForceSwapMapInterval logicQueueSwapMapInterval
        logicQueueSwapMapReserveFileNum mappedFileSwapEnable putConsumeQueueDataByFileChannel
        redeleteHangedFileInterval warmMapedFileEnable writeWithoutMmap""",
    "the store flushes, checks, scans and cleans by its own rules": """
        accessMessageInMemoryHotRatio checkCRCOnRecover cleanFileForciblyEnable
        correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
        deleteConsumeQueueFilesInterval diskFallRecorded enableAcceleratedRecovery
        enableLogConsumeQueueRepeatedlyBuildWhenRecover enableRunningFlagsInFlush estimateAccumulation
        flushCommitLogTimed flushConsumeQueueLeastPages logicalDiskSpaceCleanForciblyThreshold
        maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxRecoveryCommitlogFiles
        messageIndexSafe pullBatchMaxMessageCount putMsgIndexHightWater readUnCommitted
        recheckReputOffsetFromCq sampleCountThreshold sampleSteps travelCqFileNumWhenGetMessage
        useStaticSubscription wakeFlushWhenPutMessage
        checkCommitLogOffsetOnRecover commitLogRecoverMaxNum sharedByteBufferNum""",
    "group offsets are written as a whole": "persistConsumerOffsetIncrementally",
    "topics longer than 127 bytes use the newer record format automatically": """
        autoMessageVersionOnTopicLen maxTopicLength""",
    "queues are files; RocksDB is not supported": """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin
        combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
        combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType configManagerVersion enableRocksDBLog
        flushConsumerOffsetHistoryInterval memTableFlushIntervalMs realTimePersistRocksDBConfig
        rocksdbCQDoubleWriteEnable rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec""",
    "timers, transactions, index and metadata are in files; RocksDB is not supported": """
        indexFileReadEnable indexFileWriteEnable iteratorWhenUseRocksdbConsumeQueue maxRocksDBIndexQueryDays
        timerRecallToTimelineEnable timerReputServiceCorePoolSize timerReputServiceMaxPoolSize
        timerReputServiceQueueCapacity timerRocksDBPrecisionMs timerRocksDBRollIntervalHours
        timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
        transWriteOriginTransHalfEnable transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
        transactionCheckRocksdbQueueCapacity useSeparateStorePathForRocksdbCQ
        useSingleRocksDBForAllConfigs""",
    "a batch queue is searched in its files": "searchBcqByCacheEnable",
    "compaction topics are not supported yet": """
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
        enableCompaction maxOffsetMapSize""",
    "one loop enqueues and delivers timed messages and retries until it succeeds": """
        disappearTimeAfterStart timerCheckMetricsWhen timerColdDataCheckIntervalMs timerEnableCheckMetrics
        timerEnableDisruptor timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum
        timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum timerSkipUnknownError
        timerStopDequeue timerStopEnqueue timerWarmEnable""",
    "each delay level has its own queue": "maxDelayTime timerInterceptDelayLevel",
    "a recall is stored as a message": """
        allowRecallWhenBrokerNotWriteable appendTopicForTimerDeleteKey timerRecallToTimeWheelEnable""",
    "the timer wheel is written in place": "timerWheelSnapshotFlush timerWheelSnapshotIntervalMs",
    "delayed messages are delivered in order, level by level": """
        enableScheduleAsyncDeliver enableScheduleMessageStats scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked""",
    "the end of a transaction is written immediately, one message each": """
        transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize""",
    "producers are always registered": "enableRegisterProducer",
    "SQL92 filters are evaluated when messages are pulled, not when they are stored": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap enableConsumeQueueExt expectConsumerNumUseFilter
        mappedFileSizeConsumeQueueExt maxErrorRateOfBloomFilter""",
    "retries are delivered without a filter": "filterSupportRetry",
    "filters of inactive groups are removed after a day": "filterDataCleanTimeSpan",
    "check points and acknowledgements are appended without waiting": "appendAckAsync appendCkAsync",
    "batches are never pushed": "enableBatchPush isEnableBatchPush",
    "held pops of an ordered queue always know when it is free": "enableNotifyAfterPopOrderLockRelease",
    "the lag of a pop group needs no fresh position": "enableNotifyBeforePopCalculateLag",
    "a check point leaves out what is acknowledged": "enablePopBatchAck",
    "events of pops are in the broker's log": "enablePopLog popConsumerKVServiceLog",
    "a check point never waits for its acknowledgements": """
        enableSkipLongAwaitingAck popCkStayBufferTimeOut reviveAckWaitMs reviveMaxSlow reviveScanTime""",
    "the memory of popped batches is limited by popCkMaxBufferSize": "popCkOffsetMaxQueueSize",
    "check points are in the revive topic; RocksDB is not supported": """
        popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
        popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead""",
    "held pops are forgotten when they are answered": "popPollingMapExpireTimeSeconds popPollingMapSize",
    "pop follows rules of its own here": """
        maxMessageFilterNumForNotification popReviveConcurrency popReviveSkipIfGroupAbsent
        useMessageFilterForNotification useSeparateRetryQueue""",
    "a client of lite topics finds every message without a limit of events": """
        enableLiteEventMode liteEventCheckInterval liteEventFullDispatchDelayTime
        liteEventFullDispatchDelayTimeForWildcardGroup maxClientEventCount""",
    "the lag of lite topics is computed when it is asked for (getLiteGroupInfo)": """
        enableLitePopLog liteLagCountMetricsEnable liteLagLatencyCollectEnable liteLagLatencyMetricsEnable
        liteLagLatencyTopK""",
    "the route is fetched when a consumer queries its assignment": """
        loadBalancePollNameServerInterval""",
    "slaves do not act as masters, and there is no DLedger commit log: use controller mode": """
        brokerNotActiveTimeoutMillis cleanOfflineBrokerInterval dLegerGroup dLegerPeers dLegerSelfId
        enableRemoteEscape lockInStrictMode preferredLeaderId skipPreOnline storePathDLedgerCommitLog
        syncBrokerMemberGroupPeriod totalReplicas""",
    "the in-sync set is checked ten times a second": "checkSyncStateSetPeriod",
    "controllers are listed in controllerAddr": "fetchControllerAddrByDnsLookup",
    "identity and epochs are in files of the store's directory": "storePathBrokerIdentity storePathEpochFile",
    "a slave copies all metadata of its master every slaveMetadataSyncPeriod": """
        enableSplitMetadata splitMetadataSize""",
    "replaced by haMaxGapNotInSync since RocketMQ 5": "haSlaveFallbehindMax",
    "an empty slave copies the whole log": "syncMasterFlushOffsetWhenStartup",
    "the commit log is on one disk": "replicasPerDiskPartition",
    "used only by the first releases of RocketMQ": "maxSlaveResendLength",
    "the broker registers all topics with all name servers, and new topics individually": """
        compatibleWithOldNameSrv compressedRegister enableSingleTopicRegister enableSplitRegistration
        isScanAvailableNameSrv splitRegistrationSize updateNameServerAddrPeriod""",
    "name servers are listed in namesrvAddr": """
        fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval""",
    "static topics are not supported yet": "forwardTimeout",
    "the gRPC proxy is not supported yet": """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond enableBroadcastOffsetStore""",
    "groups that fall behind stay enabled": """
        consumerFallbehindThreshold disableConsumeIfConsumerReadSlowly enableCleanExpiredOffset""",
    "limits of cold reads are fixed by their settings": "coldCtrStrategyEnable usePIDColdCtrStrategy",
    "every read asks the kernel whether the data is in memory": "coldDataScanEnable",
    "group members are notified of changes immediately": "realTimeNotifyConsumerChange",
    "statistics are always recorded, for active topics and groups only": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount
        commercialBigCount commercialEnable commercialSizePerMsg commercialTimerCount commercialTransCount
        enableDetailStat enableLmqStats maxStatsIdleTimeInMinutes""",
    "metrics are always served for Prometheus, on metricsPromExporterPort": """
        enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics enablePopMetrics
        enableRemotingMetrics enableRequestMetrics enableStatsMetrics enableTransactionMetrics
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
        metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader
        metricsExportBatchMaxDataPoints metricsGrpcExporterTarget metricsInDelta metricsLabel
        metricsOtelCardinalityLimit
        metricsPromExporterHost""",
    "light queues are always kept, in files, and for lite topics only": """
        combineCQUseRocksdbForLmq enableLmq enableMultiDispatch""",
    "filter servers are not supported": "filterServerNums",
    "broker containers are not supported": "isBrokerContainer isInBrokerContainer",
    "logs are configured on the command line": "isolateLogEnable",
    "a server stops within shutdownTimeout": "enableShutdownGracefully shutdownWaitTimeSeconds",
    "not used": "clusterTest productEnvName rocketmqHome",
    # In very many files that people have; RocketMQ passes over keys that it does not know.
    "RocketMQ ignores it, too: all files but the log are in storePathRootDir": """
        abortFile storeCheckpoint storePathAbort storePathCheckpoint storePathConsumeQueue
        storePathConsumerQueue storePathIndex""",
    "RocketMQ ignores it, too: transactions are always checked": "checkTransactionMessageEnable",
    "RocketMQ ignores this spelling, too; use mappedFileSize…": """
        mapedFileSizeCommitLog mapedFileSizeConsumeQueue""",
    "the name server does not manage replicas": """
        notifyMinBrokerIdChanged supportActingMaster""",
    "the controller leaves consensus to etcd, or is alone (controllerType)": """
        controllerRequestThreadPoolQueueCapacity controllerThreadPoolNums electMasterMaxRetryCount
        isProcessReadEvent jRaftControllerRPCAddr jRaftElectionTimeoutMs jRaftGroupId jRaftInitConf
        jRaftScanWaitTimeoutMs jRaftServerId jRaftSnapshotIntervalSecs mappedFileSize
        scanInactiveMasterInterval""",
    "the fixed keys of a name server cannot be configured": "configBlackList",
    "users and ACLs are always in memory": """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
        statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond
        statefulAuthorizationCacheMaxNum userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond""",
    "users and ACLs are in files beside those of topics": "authConfigPath configName",
}

UNUSED_KEYS = {key: reason for reason, keys in _UNUSED_BY_REASON.items() for key in keys.split()}
"""Key to reason: ignored with a warning, unless the value is RocketMQ's default (`rocketmq_defaults.py`)."""

_OFF = ("false", "")
REFUSED_KEYS: dict[str, tuple[tuple[str, ...], str]] = {
    "aclEnable": (
        _OFF,
        "RocketMQ 5.3.3 ignores it and serves everybody; set authenticationEnabled and authorizationEnabled, "
        "and import plain_acl.yml with `skylark user import`",
    ),
    "duplicationEnable": (_OFF, "use controller mode: enableControllerMode"),
    "enableDLegerCommitLog": (_OFF, "use controller mode: enableControllerMode"),
    "enableSlaveActingMaster": (_OFF, "use controller mode: enableControllerMode"),
    "indexRocksDBEnable": (_OFF, "the index is in files; RocksDB is not supported"),
    "migrateAuthFromV1Enabled": (_OFF, "import plain_acl.yml with `skylark user import`"),
    "messageStorePlugIn": (("",), "store plug-ins are not supported"),
    "readOnlyCommitLogStorePaths": (("",), "the commit log is in one directory"),
    "storeType": (("default",), "queues are files; RocksDB is not supported"),
    "timerRocksDBEnable": (_OFF, "timers are in files; RocksDB is not supported"),
    "transRocksDBEnable": (_OFF, "transactions are in topics; RocksDB is not supported"),
    "useTLS": (_OFF, "use tls.enable for connections of this server, tls.server.mode for its ports"),
}
"""Key to accepted values and reason: any other value requests a feature that does not exist here."""
